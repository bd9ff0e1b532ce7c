"""What the package's source asks of torch: names that not every build has, and texts of errors.

All is read from the syntax, so a new use is found wherever it stands. What is computed (``getattr``
with a variable) and what is asked of objects (``event.elapsed_time``) is not.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

from package_source import Module, modules

_MAY_DIFFER = re.compile(
    r"torch\.(cuda|backends|version|ops|_C)\..*|torch\._[a-z]\w*|torch\.distributed\.\w+"
    r"|torch\.distributed\.(_symmetric_memory|ProcessGroup\w+)\..*")
"""Names of what a build of torch may lack or have otherwise; the rest is Python for all builds."""
_OBJECT = "torch.distributed.group.WORLD"
"""What follows is asked of a group, not of torch."""
_READ = "str(error)"
Aliases = Mapping[str, str]


@cache
def torch_names() -> Mapping[str, frozenset[str]]:
    """Return each name of torch that its builds may differ in -> keywords it is called with."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules().values():
        if "torch" not in module.text:
            continue
        aliases = _aliases(module)
        for node in _outermost(module.tree):
            if (name := _full_name(node, aliases)) and _MAY_DIFFER.fullmatch(name):
                found[name] |= set()
        for call in module.nodes:
            if isinstance(call, ast.Call) and (name := _full_name(call.func, aliases)) in found:
                found[str(name)] |= {word.arg for word in call.keywords if word.arg}
    return {name: frozenset(keywords) for name, keywords in sorted(found.items())}


@cache
def recognised_texts() -> frozenset[str]:
    """Return, in lower case, the texts by which the package tells errors apart.

    They are looked for ``in`` what comes of ``str(error)``, or at its start or end: constants, and
    those of a tuple of the same module.
    """
    found: set[str] = set()
    for module in modules().values():
        if _READ not in module.text:
            continue
        tuples = _tuples(module.tree)
        for function in module.functions():
            for node in _looked_for(function):
                found.update(_texts(node, tuples, f"{module.file}:{node.lineno}"))
    return frozenset(text.lower() for text in found)


def _aliases(module: Module) -> Aliases:
    """Return which names of a module stand for which of torch's."""
    found: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}"
                      for alias in node.names}
    for node in module.tree.body:  # such as _OPS = torch.ops.symm_mem
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and (name := _full_name(node.value, found)):
                found[target.id] = name
    return {alias: name for alias, name in found.items()
            if name == "torch" or name.startswith("torch.")}


def _outermost(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield ``a.b.c``, but not ``a.b`` and ``a`` within it; and imported names for themselves."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in inner:
            yield node


def _full_name(node: ast.expr | None, aliases: Aliases) -> str | None:
    """Return what a name or a chain of attributes is called in full; None if it is not torch's."""
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, aliases)
        return owner if owner in (None, _OBJECT) else f"{owner}.{node.attr}"
    return aliases.get(node.id) if isinstance(node, ast.Name) else None


def _tuples(tree: ast.Module) -> Mapping[str, list[str]]:
    """Return the texts of each tuple that a module defines."""
    return {node.targets[0].id: [item.value for item in node.value.elts
                                 if isinstance(item, ast.Constant)]
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Tuple)}


def _looked_for(function: ast.AST) -> Iterator[ast.expr]:
    """Yield what a function looks for in the text of an error."""
    texts = {ast.unparse(target) for node in ast.walk(function) if isinstance(node, ast.Assign)
             and _READ in ast.unparse(node.value) for target in node.targets}
    rows = {ast.unparse(node.target): node.iter for node in ast.walk(function)
            if isinstance(node, ast.comprehension)}

    def is_text(node: ast.expr) -> bool:
        return ast.unparse(node) in texts or _READ in ast.unparse(node)

    for node in ast.walk(function):
        if (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In)
                and is_text(node.comparators[0])):
            yield rows.get(ast.unparse(node.left), node.left)
        elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("startswith", "endswith") and is_text(node.func.value)):
            yield node.args[0]


def _texts(node: ast.expr, tuples: Mapping[str, list[str]], where: str) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    name = ast.unparse(node)
    assert name in tuples, f"{where}: {name} cannot be read here: define it there, as a tuple"
    return tuples[name]
