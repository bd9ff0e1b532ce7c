"""The words that a test reaches: names and texts in it, and in what of its file it uses."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

_LAUNCHES = ("run", "start")


def reached_words(file: Path, test: str) -> frozenset[str]:
    """Return the words of a test's code, of the functions and constants it uses, and their file's.

    Texts are split at spaces, slashes and dots; comments and docstrings do not count. The fixture
    ``mpirun`` starts ``python -m hpcbench run`` where it is given no command of its own.
    Raises KeyError if the file has no such test.
    """
    top = _definitions(file)
    words: set[str] = set()
    left, seen = [test], {test}
    while left:
        found = _words(top[left.pop()])
        words |= found
        new = found & top.keys() - seen
        seen |= new
        left += new
    return frozenset(words)


@cache
def _definitions(file: Path) -> dict[str, ast.stmt]:
    """Return what a file defines at its top level, by name."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {name.id: node for name in node.targets if isinstance(name, ast.Name)}
    return found


def _words(definition: ast.stmt) -> set[str]:
    texts = {id(node.value) for node in ast.walk(definition)
             if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    words: set[str] = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            words.update(re.split(r"[\s/]+", node.value), re.split(r"[\s/.]+", node.value))
        elif isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.arg):
            words.add(node.arg)
        elif isinstance(node, ast.Call) and _is_plain_run(node):
            words |= {"python", "hpcbench", "run"}
    return words


def _is_plain_run(call: ast.Call) -> bool:
    return (isinstance(call.func, ast.Attribute) and call.func.attr in _LAUNCHES
            and isinstance(call.func.value, ast.Name) and call.func.value.id == "mpirun"
            and not {"command", None} & {word.arg for word in call.keywords})
