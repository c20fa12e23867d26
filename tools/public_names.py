"""What can a user of the library name? One line an item, from rustdoc's JSON on standard input.

    tools/public_names.sh            compares with docs/PUBLIC_NAMES.txt
    HPS_BLESS=1 tools/public_names.sh   writes it anew

Methods, fields and variants stand under their type; traits that are derived or implemented for everybody
are left out. An item that is public and hidden from the documents is marked `hidden`.
"""

import json
import sys


def main():
    crate = json.load(sys.stdin)
    index, lines = crate["index"], set()

    def item(key):
        return index.get(str(key))

    def is_hidden(found):
        return any("hidden" in str(attribute) for attribute in found["attrs"])

    def add(kind, path, found, hidden=False):
        hidden = hidden or is_hidden(found)
        lines.add(f"{'hidden ' if hidden else ''}{kind} {path}")

    def members(path, inner):
        for key in inner.get("impls", []):
            block = item(key)
            of = block["inner"]["impl"]
            if of["trait"] is not None:
                continue
            for method in filter(None, map(item, of["items"])):
                if method["visibility"] == "public":
                    kind = next(iter(method["inner"]))
                    add({"function": "fn", "assoc_const": "const"}.get(kind, kind), f"{path}::{method['name']}", method)

    def fields(path, kind):
        if kind == "unit":
            return
        if "tuple" in kind:
            keys = kind["tuple"]
        else:
            keys = kind.get("plain", kind.get("struct"))["fields"]
        for field in filter(None, (item(key) for key in keys if key is not None)):
            if field["visibility"] in ("public", "default"):
                add("field", f"{path}.{field['name']}", field)

    def walk(path, key, name=None, seen=(), hidden=False):
        found = item(key)
        if found is None or key in seen or (found["visibility"] != "public" and name is None):
            return
        (kind, inner), = found["inner"].items()
        if kind == "use":
            if inner["is_glob"]:
                for child in item(inner["id"])["inner"]["module"]["items"]:
                    walk(path, child, None, (*seen, key), hidden or is_hidden(found))
            elif inner["id"] is not None:
                walk(path, inner["id"], inner["name"], (*seen, key), hidden or is_hidden(found))
            return
        path = f"{path}::{name or found['name']}"
        words = {"function": "fn", "type_alias": "type", "constant": "const", "module": "mod"}
        add(words.get(kind, kind), path, found, hidden)
        if kind == "module":
            for child in inner["items"]:
                walk(path, child, None, (*seen, key))
        elif kind == "struct":
            fields(path, inner["kind"])
            members(path, inner)
        elif kind == "enum":
            for variant in map(item, inner["variants"]):
                add("variant", f"{path}::{variant['name']}", variant)
                of = variant["inner"]["variant"]["kind"]
                fields(f"{path}::{variant['name']}", "unit" if of == "plain" else of)
            members(path, inner)
        elif kind == "trait":
            for child in map(item, inner["items"]):
                add("fn", f"{path}::{child['name']}", child)

    root = item(crate["root"])
    for child in root["inner"]["module"]["items"]:
        walk("hps", child)
    print("\n".join(sorted(lines, key=lambda line: (line.split()[-1], line))))


main()
