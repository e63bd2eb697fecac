"""Writes the stubs of the package, for type checkers: Python itself reads a table or an extension instead.

    python tools/stubs.py           writes them
    python tools/stubs.py --check   fails if one of them is out of date

`tent/__init__.pyi` and `tent/testing/__init__.pyi` come from the tables of public names in the `__init__.py` beside
them, `tent/_gotent.pyi` from the exported functions of pybind, with their comments as docstrings.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import generated

ROOT = generated.ROOT
COLUMNS = 120
TYPES = {"string": "str", "bool": "bool", "float64": "float"} | dict.fromkeys(
    ("int", "int32", "int64", "uint32", "uint64"), "int"
)
EXPORTED = re.compile(
    r"^((?://.*\n)*)func ([A-Z]\w*)\(([^)]*)\) (?:\((?:\w+ )?([\w.]+), (?:err )?error\)|(\w+)) {", re.M
)


class Function(NamedTuple):
    """One exported function of pybind, in Python's types. All arguments go by position."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    returns: str
    doc: str

    def declaration(self, indent: str = "", body: str = " ...") -> list[str]:
        """The lines of its `def`, inside a class if they are indented."""
        first = ["self"] if indent else []
        words = [*first, *(f"{name}: {kind}" for name, kind in self.parameters)]
        words += ["/"] if self.parameters else []
        lines = wrapped(f"{indent}def {self.name}(", words, f") -> {self.returns}:{body}")
        return [lines[0], *(f"{indent}{line}" for line in lines[1:])]


def exported(text: str) -> Iterator[Function]:
    """The exported functions of a Go file. Raises ValueError for one that Python cannot call."""
    found = list(EXPORTED.finditer(text))
    if len(found) != len(re.findall(r"^func [A-Z]", text, re.M)):
        raise ValueError("an exported function does not return one value and an error")
    for comment, name, parameters, returns, bare in (match.groups() for match in found):
        doc = " ".join(line.removeprefix("//").strip() for line in comment.splitlines())
        yield Function(f"pybind_{name}", tuple(arguments(parameters)), TYPES[returns or bare], doc)


def arguments(text: str) -> Iterator[tuple[str, str]]:
    """The parameters of a Go function, "id, n int64, name string", in Python's names and types."""
    waiting: list[str] = []
    for part in filter(None, (part.strip() for part in text.replace("\n", " ").split(","))):
        name, _, kind = part.partition(" ")
        waiting.append("engine" if name == "id" else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
        if kind:
            yield from ((name, TYPES[kind.strip()]) for name in waiting)
            waiting.clear()


def extension_stub() -> str:
    """The text of tent/_gotent.pyi."""
    files = sorted(path for path in (ROOT / "pybind").glob("*.go") if not path.name.endswith("_test.go"))
    functions = sorted(function for path in files for function in exported(path.read_text(encoding="utf-8")))
    lines = [
        "# Written by tools/stubs.py from pybind/*.go. Integers, addresses and strings; a failure is a RuntimeError",
        "# with a JSON object as its text. Times are milliseconds unless the name says otherwise.",
        "",
        "from typing import Protocol",
        "",
        "class Library(Protocol):",
        '    """The extension module as a type. Closed engines and forked children hold one that only raises."""',
        "",
    ]
    for function in functions:
        doc = textwrap.wrap(f'"""{function.doc}"""', COLUMNS - 8, break_on_hyphens=False)
        lines += [*function.declaration("    ", body=""), *(f"        {line}" for line in doc), ""]
    for function in functions:
        lines += function.declaration()
    return "\n".join(lines) + "\n"


def package_stub(source: str) -> str:
    """The text of an __init__.pyi, from the table and the call of attach() in its __init__.py."""
    public: dict[str, str] = {}
    options: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_PUBLIC":
            public = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            options = {str(word.arg): ast.literal_eval(word.value) for word in node.value.keywords}
    eager, unlisted = options.get("eager", "").split(), set(options.get("unlisted", "").split())
    unlisted |= {name for module, names in public.items() if module.startswith("_") for name in names.split()}
    names = {name for names in public.values() for name in names.split()}
    lines = ["# Written by tools/stubs.py from the table in __init__.py.", ""]
    for module, named in sorted({**public, **({"_version": " ".join(eager)} if eager else {})}.items()):
        words = sorted(set(named.split()) - unlisted, key=constants_first)
        one = f"from .{module} import {', '.join(words)}"
        if words:
            lines += [one] if len(one) <= COLUMNS else wrapped(f"from .{module} import (", words, ")")
        lines += [
            f"from .{module} import {name} as {name}"
            for name in sorted({*named.split()} & unlisted, key=constants_first)
        ]
    listed = sorted({*names, *eager} - unlisted, key=constants_first)
    lines += ["", *wrapped("__all__ = [", [f'"{name}"' for name in listed], "]")]
    return "\n".join(lines) + "\n"


def constants_first(name: str) -> tuple[int, str]:
    """The order in which linters want names: constants, classes, the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def wrapped(start: str, words: list[str], end: str) -> list[str]:
    """Words between brackets as formatters want them: on one line if they fit, else each on its own."""
    line = start + ", ".join(words) + end
    return [line] if len(line) <= COLUMNS else [start, *(f"    {word}," for word in words), end]


def stubs() -> dict[Path, str]:
    """Every stub with the text that it should have."""
    made = {ROOT / "tent" / "_gotent.pyi": extension_stub()}
    for folder in (ROOT / "tent", ROOT / "tent" / "testing"):
        made[folder / "__init__.pyi"] = package_stub((folder / "__init__.py").read_text(encoding="utf-8"))
    return made


def main() -> int:
    return generated.renew(stubs(), "python tools/stubs.py", check="--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
