"""Do the CUDA kernels compile to what they promise? Called by kernels.sh; no GPU is needed.

NVRTC compiles kernels/*.cu for each architecture, as the library does when it opens a device. Asked of
each architecture:

- The compiler warns of nothing.
- The entry points are the NAMES of src/hbm/kernels.rs; each takes one structure whose size is asserted in
  the source.
- No kernel spills registers or has a stack, and none needs more registers than its family may.
- Copies of rows move 16 bytes a lane.
- Floats are never added by atomics, and no operation is fused or approximate: in PTX nowhere, in SASS
  only inside the sequences that make up divisions and roots.

Every fault is printed. An atomic add that is written as a loop of compare-and-swap is not found.
"""

import argparse
import ctypes
import fnmatch
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor

ARCHITECTURES = ["sm_80", "sm_90"]
OPTIONS = ["--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"]

# (family, its kernels, registers of a thread at most). A kernel must be in exactly one family. With 256
# threads a block, 64 registers let a multiprocessor hold 4 blocks, 65 only 3.
REGISTERS = [
    ("copy", ["get_*", "pack_*", "place_*"], 64),
    ("index", ["insert", "rows_of", "check_rows", "merge", "probe_*"], 40),
    ("sort", ["sort_scan", "count_by_*", "move_by_owner", "move_by_dirty"], 64),
    ("sort in shared memory", ["move_by_row"], 80),
    ("update", ["sgd_*", "momentum_*", "nesterov_*", "adagrad_*", "rowwise", "adam_*", "ftrl_*"], 72),
    ("check", ["check_gradients", "find_long"], 40),
    ("flag", ["flag_gradients"], 56),
]
# Kernels that copy rows 16 bytes a lane.
WIDE = ["get_wide*", "pack_wide*", "place_wide*"]
# Kernels that divide floats or take roots. ptxas builds both of FFMA; no other kernel may have one.
DIVIDES = ["adagrad_*", "adam_*", "ftrl_*", "rowwise"]

FLOAT = r"(?:f16|f16x2|bf16|bf16x2|f32|f32x2|f64)\b"
PTX_FAULTS = [
    ("fuses a multiplication and an addition", rf"\b(?:fma|mad)\.[\w.]*{FLOAT}"),
    ("has a float atomic", rf"\b(?:atom|red)\.[\w.:]*{FLOAT}"),
    ("approximates, or flushes denormals", r"\b\w+\.(?:\w+\.)*(?:approx|full|ftz)\b[\w.]*"),
    ("divides or takes a root without .rn", rf"\b(?:div|sqrt|rcp|rsqrt)\.(?!rn\.)[\w.]*{FLOAT}"),
]

ROOT = pathlib.Path(__file__).resolve().parent.parent
NVIDIA = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13"


class CannotRun(Exception):
    """Something other than a kernel is at fault."""


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def strings_of(path, constant):
    """The string literals in the array `constant` of a Rust file."""
    found = re.search(rf"\b{constant}: &\[&str\] = &\[(.*?)\];", read(path), re.S)
    if not found:
        raise CannotRun(f"{path} has no array {constant}")
    return re.findall(r'"([^"]*)"', found[1])


class Nvrtc:
    """The compiler; its functions return 0 for success."""

    def __init__(self):
        folder = NVIDIA / "lib"
        try:
            # Loaded first, the builtins are found by their name, without LD_LIBRARY_PATH.
            for builtins in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
            self.library = ctypes.CDLL(str(folder / "libnvrtc.so.13"))
        except OSError as error:
            raise CannotRun(f"NVRTC: {error}") from error

    def compile(self, source, architecture):
        """(the log, PTX or None, CUBIN or None); None where the source does not compile."""
        program = ctypes.c_void_p()
        self.call("CreateProgram", ctypes.byref(program), source.encode(), b"hps.cu", 0, None, None)
        options = [*OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
        array = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        compiled = self.library.nvrtcCompileProgram(program, len(options), array)
        if compiled not in (0, 6):  # 6: the log says what is wrong
            raise CannotRun(f"nvrtcCompileProgram returned {compiled}: {self.text(program, 'ProgramLog')}")
        log = self.text(program, "ProgramLog")
        if compiled == 6:
            return log, None, None
        return log, self.text(program, "PTX"), self.get(program, "CUBIN")

    def call(self, name, *arguments):
        code = getattr(self.library, f"nvrtc{name}")(*arguments)
        if code != 0:
            raise CannotRun(f"nvrtc{name} returned {code}")

    def get(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", program, buffer)
        return buffer.raw

    def text(self, program, what):
        return self.get(program, what).decode(errors="replace").rstrip("\0")


def cuobjdump(option, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [NVIDIA / "bin/cuobjdump", option, file.name]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotRun(f"cuobjdump {option}: {done.stderr.strip()}")
    return done.stdout


def parts(pattern, text):
    """{name: the text up to the next name}; `pattern` finds the names."""
    pieces = re.split(pattern, text)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def opcodes(sass):
    """The opcodes of a kernel, without predicates."""
    found = []
    for line in sass.splitlines():
        if address := re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            opcode = re.match(r"\s*(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line[address.end():])
            if not opcode:
                raise CannotRun(f"not understood as an instruction: {line}")
            found.append(opcode[1])
    return found


class Compiled:
    """The code of one architecture: tables by the kernels' names."""

    def __init__(self, architecture, log, ptx, cubin):
        self.architecture, self.ptx_text = architecture, ptx
        self.ptx = parts(r"\.entry\s+(\w+)\s*\(", ptx)
        sass = parts(r"\bFunction : (\S+)", cuobjdump("-sass", cubin))
        self.opcodes = {name: opcodes(text) for name, text in sass.items()}
        self.usage = {
            name: {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
            for name, line in re.findall(r"Function (\S+):\s*\n(.*)", cuobjdump("-res-usage", cubin))
        }
        spills = r"Function properties for (\S+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
        self.spills = {name: (int(out), int(back)) for name, out, back in re.findall(spills, log)}


def check_log(architecture, log):
    """ptxas reports registers in the log: all other lines are warnings or errors."""
    lines = [line for line in log.splitlines() if not re.match(r"\s*$|ptxas\s+(info\s|\.)", line)]
    if lines:
        yield "\n  ".join([f"{architecture}: the compiler says this; nothing is allowed:", *lines[:20]])


def check_names(code, names, sizes):
    for where, found in (("PTX", code.ptx), ("CUBIN", code.usage), ("SASS", code.opcodes)):
        for name in sorted(set(found) - names):
            yield f"{name}, {code.architecture}: in the {where}, not in NAMES of src/hbm/kernels.rs"
        for name in sorted(names - set(found)):
            yield f"{name}, {code.architecture}: in NAMES of src/hbm/kernels.rs, not in the {where}"
    for name, ptx in code.ptx.items():
        parameters = re.findall(r"\.param\s+([^,)]*)", ptx.split(")")[0])
        size = re.fullmatch(r"\.align \d+ \.b8 \w+\[(\d+)\]\s*", ",".join(parameters))
        if not size:
            yield f"{name}, {code.architecture}: has the parameters {parameters}; one structure is allowed"
        elif int(size[1]) not in sizes:
            yield (f"{name}, {code.architecture}: takes {size[1]} bytes of arguments; "
                   f"static_asserts allow {sorted(sizes)}")


def is_one_of(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def families_of(name):
    return [(family, most) for family, patterns, most in REGISTERS if is_one_of(name, patterns)]


def check_resources(code):
    at = code.architecture
    for name in sorted(set(code.usage) | set(code.spills)):
        usage, spills = code.usage.get(name), code.spills.get(name)
        if usage is None or spills is None or not code.opcodes.get(name):
            yield f"{name}, {at}: usage {usage}, spills {spills}, or its instructions could not be read"
            continue
        stack, local = usage["STACK"], usage["LOCAL"]
        if any((*spills, stack, local)):
            yield (f"{name}, {at}: {spills[0]} bytes of spill stores, {spills[1]} of spill loads, {stack} of "
                   f"stack, {local} of local memory; 0 of each are allowed")
        for family, most in families_of(name):
            if usage["REG"] > most:
                yield f"{name}, {at}: {usage['REG']} registers; family {family} is allowed {most}"


def check_instructions(code):
    at = code.architecture
    for name, found in sorted(code.opcodes.items()):
        if is_one_of(name, WIDE):
            wide = [op[:3] for op in found if re.match(r"(LDG|STG)\..*\b128\b", op)]
            loads, stores = wide.count("LDG"), wide.count("STG")
            # A get also looks keys up 16 bytes at a time: one load would not show that rows are read so.
            if stores == 0 or loads < stores:
                yield f"{name}, {at}: {loads} LDG.128, {stores} STG.128; a copy has both, and a load a store"
        fused = "DFMA" if is_one_of(name, DIVIDES) else "[DF]FMA"
        bad = rf"(RED|ATOM)\w*\..*F(16|32|64)|{fused}"
        for op in sorted({op for op in found if re.match(bad, op)}):
            yield f"{name}, {at}: SASS has {found.count(op)} times {op}; none are allowed"
    # Device functions that are not inlined may stand before the first kernel.
    before = re.split(r"\.entry\b", code.ptx_text)[0]
    for name, ptx in [("(before the first kernel)", before), *sorted(code.ptx.items())]:
        for what, pattern in PTX_FAULTS:
            for op in sorted(set(re.findall(pattern, ptx))):
                yield f"{name}, {at}: PTX {what}: {op}; none are allowed"


def check_tables(names):
    """What is written above and in Rust fits the kernels: no pattern has lost its kernels."""
    for name in sorted(names):
        if len(families_of(name)) != 1:
            yield f"{name}: in the families {families_of(name)} of REGISTERS in kernels.py; one is allowed"
    for pattern in sum((patterns for _, patterns, _ in REGISTERS), WIDE + DIVIDES):
        if not fnmatch.filter(names, pattern):
            yield f"{pattern} in kernels.py: no kernel has such a name"
    used = strings_of("src/hbm/driver/compile.rs", "OPTIONS")
    if used != OPTIONS:
        yield f"OPTIONS of src/hbm/driver/compile.rs are {used}, those of kernels.py {OPTIONS}"


def print_registers(codes, names):
    print(f"{'kernel':<18}{'arch':<7}{'registers':>9}{'allowed':>9}{'shared':>8}{'stack':>7}{'spilled':>9}")
    for name in sorted(names):
        allowed = "/".join(str(most) for _, most in families_of(name))
        for code in codes:
            if usage := code.usage.get(name):
                print(f"{name:<18}{code.architecture:<7}{usage['REG']:>9}{allowed:>9}{usage['SHARED']:>8}"
                      f"{usage['STACK']:>7}{sum(code.spills.get(name, ())):>9}")


def main():
    parser = argparse.ArgumentParser(prog="kernels.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--registers", action="store_true", help="print what each kernel needs")
    parser.add_argument("--cubin", metavar="DIR", type=pathlib.Path, help="write the compiled kernels there")
    options = parser.parse_args()

    names = set(strings_of("src/hbm/kernels.rs", "NAMES"))
    files = re.findall(r'include_str!\("\.\./\.\./(kernels/\w+\.cu)"\)', read("src/hbm/kernels.rs"))
    source = "".join(read(file) for file in files)
    sizes = {int(size) for size in re.findall(r"static_assert\(sizeof\(\w+Args\) == (\d+)", source)}
    if not (names and files and sizes):
        raise CannotRun(f"found {len(names)} kernels, {len(files)} files, {len(sizes)} sizes of arguments")

    nvrtc = Nvrtc()
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda one: nvrtc.compile(source, one), ARCHITECTURES))
    faults, codes = list(check_tables(names)), []
    for architecture, (log, ptx, cubin) in zip(ARCHITECTURES, results, strict=True):
        faults += check_log(architecture, log)
        if cubin is None:
            faults.append(f"{architecture}: the kernels do not compile")
            continue
        code = Compiled(architecture, log, ptx, cubin)
        codes.append(code)
        faults += [*check_names(code, names, sizes), *check_resources(code), *check_instructions(code)]
        if options.cubin:
            options.cubin.mkdir(parents=True, exist_ok=True)
            (options.cubin / f"hps-kernels-{architecture}.cubin").write_bytes(cubin)
    if options.registers:
        print_registers(codes, names)
    if faults:
        sys.stdout.flush()
        for fault in [*faults, f"{len(faults)} faults"]:
            print(f"kernels.sh: {fault}", file=sys.stderr)
        return 1
    print(f"kernels.sh: {len(names)} kernels, {len(ARCHITECTURES)} architectures: passed")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CannotRun, OSError) as error:
        print(f"kernels.sh: could not run: {error}", file=sys.stderr)
        sys.exit(8)
