"""The package as its source says it is: modules, what each imports and when, functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from launcher import ROOT

PACKAGE = "hpcbench"
KINDS = f"{PACKAGE}.kinds"


@dataclass(frozen=True)
class Import:
    """One imported module. ``lazy``: inside a function; ``typing``: for type checkers only."""

    target: str
    line: int
    lazy: bool
    typing: bool


@dataclass(frozen=True)
class Module:
    """One file of the package, parsed."""

    name: str
    path: Path
    is_package: bool

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All that is in the tree, walked once for all rules."""
        return tuple(ast.walk(self.tree))

    @property
    def file(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.tree.body, lazy=False, typing=False))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node


def _imports(body: list[ast.stmt], *, lazy: bool, typing: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy, typing)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            for alias in node.names:
                yield Import(_target(str(node.module), alias.name), node.lineno, lazy, typing)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.body, lazy=lazy, typing=True)
            yield from _imports(node.orelse, lazy=lazy, typing=typing)
        else:
            inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for part in ("body", "orelse", "finalbody"):
                yield from _imports(getattr(node, part, []), lazy=lazy or inner, typing=typing)
            for part in ("handlers", "cases"):
                for branch in getattr(node, part, []):
                    yield from _imports(branch.body, lazy=lazy, typing=typing)


def _target(module: str, name: str) -> str:
    """Return the module that ``from module import name`` reads: a submodule, else the module."""
    full = f"{module}.{name}"
    return full if full in modules() or not module.startswith(PACKAGE) else module


@cache
def modules() -> Mapping[str, Module]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path, is_package)
    return found


@cache
def rooms() -> tuple[str, ...]:
    """Return the kinds that have a room in the package."""
    return tuple(sorted(name.rpartition(".")[2] for name, module in modules().items()
                        if module.is_package and name.rpartition(".")[0] == KINDS))


def room_of(name: str) -> str | None:
    """Return the kind whose room a module lies in; None for shared code."""
    kind = name.removeprefix(f"{KINDS}.").partition(".")[0]
    return kind if name.startswith(f"{KINDS}.") and kind in rooms() else None


@cache
def loaded_with(name: str) -> frozenset[str]:
    """Return the modules of the package that importing one imports, itself among them."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in found or name not in modules():
            continue
        found.add(name)
        waiting += [name.rpartition(".")[0]]
        waiting += [one.target for one in modules()[name].imports
                    if not one.lazy and not one.typing]
    return frozenset(found)


@cache
def libraries_of(name: str) -> Mapping[str, str]:
    """Return what importing a module loads from outside the package: library -> who imports it."""
    return {one.target.partition(".")[0]: user
            for user in sorted(loaded_with(name)) for one in modules()[user].imports
            if not (one.lazy or one.typing or one.target.startswith(PACKAGE))}
