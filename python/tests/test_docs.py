"""The code of the documents runs: each block in its order, those of one section in one namespace."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# In PYTHON.md blocks build on each other; in MIGRATION.md sections are of their own.
DOCUMENTS = {"docs/PYTHON.md": False, "docs/MIGRATION.md": True, "python/README.md": False}


def sections():
    for name, apart in DOCUMENTS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        parts = re.split(r"(?m)^## ", text) if apart else [text]
        for part in parts:
            blocks = re.findall(r"(?ms)^```python\n(.*?)^```", part)
            if blocks:
                title = part.splitlines()[0].strip("# ") if apart else "all"
                yield pytest.param(name, blocks, id=f"{name}: {title}")


@pytest.mark.parametrize("name, blocks", list(sections()))
def test_the_code_of_a_document_runs(name, blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    has_torch = importlib.util.find_spec("torch") is not None
    space, left_out = {"__name__": name}, 0
    for number, block in enumerate(blocks, 1):
        if not has_torch and re.search(r"\btorch\b", block):
            left_out += 1
            continue
        exec(compile(block, f"{name}, block {number}", "exec"), space)
    assert left_out < len(blocks)
    if left_out:
        print(f"{left_out} blocks that need torch were left out of {name}; tools/python.sh runs them")


def test_the_quickstart_in_the_guide_is_the_example():
    example = (ROOT / "python/examples/quickstart.py").read_text(encoding="utf-8")
    code = example.split('"""\n\n', 1)[1]
    assert code in (ROOT / "docs/PYTHON.md").read_text(encoding="utf-8")
