"""What shared code may not name, what renderers may not do, and how long things may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from package_source import KINDS, PACKAGE, Module, modules, room_of, rooms

ORDINARY: Mapping[str, str] = {
    "hardware": "a section of the sweep file, and what is declared of a machine",
    "machine": "an ordinary word",
    "memory": "what cases hold, and a dataset of results",
}
"""Names of kinds that shared code uses as words for something else."""
NAMES = (*(name for name in rooms() if name not in ORDINARY), "comm", "train")
SPELLED: Mapping[str, str] = {
    **dict.fromkeys((
        "hpcbench/interop/compat/from_command.py: 'collective'",
        "hpcbench/interop/compat/options.py: 'collective'",
        "hpcbench/interop/compat/osu.py: 'collective'"),
        "translates options of another program into a block of ours"),
    "hpcbench/interop/dialects/ddlb.py: 'primitive'": "translates files of DDLB into our blocks",
    "hpcbench/interop/dialects/torchscale.py: 'training'":
        "translates files of TorchScale into our blocks",
    "hpcbench/interop/dialects/candle.py: 'training'":
        "translates files of the Candle suite, which have a section of that name",
    "hpcbench/interop/answers/tuner.py: 'collective'": "a column of results: the collective's name",
    "hpcbench/interop/dialects/traffic.py: 'collective'":
        "translates recorded communication into our blocks",
    "hpcbench/interop/dialects/traffic.py: 'replay'": "the name of that sweep",
    "hpcbench/interop/offers.py: 'training'": "a section of files of the Candle suite",
    "hpcbench/interop/formats/export/cases.py: 'collective'":
        "a column of results, and a label of NCCL Inspector: the collective's name",
    "hpcbench/interop/formats/imported.py: 'collective'":
        "rows of other programs are cases of that kind",
    "hpcbench/interop/formats/imported.py: 'primitive'":
        "rows of DDLB are cases of that kind",
    "hpcbench/report/summary.py: 'collective'": "a column of summary.csv: the collective's name",
}
"""Where shared code may write a word that is also a kind's name."""


def shared() -> Iterator[Module]:
    yield from (module for name, module in modules().items() if room_of(name) is None)


def kinds_spelled() -> Iterator[tuple[str, str]]:
    """Yield strings of shared code that are a kind's name, or a module of its room."""
    for module in shared():
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and (
                    node.value in NAMES or room_of(node.value.partition(":")[0])):
                found = f"{module.file}: {node.value!r}"
                if found not in SPELLED:
                    yield found, f"line {node.lineno}"


def own_fields() -> frozenset[str]:
    """Return the fields, properties and methods of workloads that not every kind has."""
    every = members(modules()["hpcbench.plan.workload"])
    return frozenset().union(*(members(module) for name, module in modules().items()
                               if name.startswith(f"{KINDS}.") and ".plan." in name)) - every


def members(module: Module) -> frozenset[str]:
    """Return what the workload classes of a module define."""
    found = set()
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and "Workload" in {
                node.name, *("Workload" if ast.unparse(base).endswith("Work") else
                             ast.unparse(base) for base in node.bases)}:
            found |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)
                      and isinstance(item.target, ast.Name)}
            found |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return frozenset(found)


def fields_used() -> Iterator[tuple[str, str]]:
    """Yield fields of one kind's workloads that shared code reads."""
    own = own_fields()
    for module in shared():
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in own and is_workload(node.value):
                yield f"{module.file}: workload.{node.attr}", f"line {node.lineno}"


def is_workload(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in {"work", "workload"}
            or isinstance(node, ast.Attribute) and node.attr == "workload")


MEASURED = re.compile(r"(_s|_ns|_us|_bytes|_flops|share|busbw|algbw|mfu|n_late|n_wrong)$")
OF_THE_PLAN = {"estimate_s", "timeout_s", "wakeup_s", "memory_bytes", "host_bytes"}
COUNTING = {"sum", "median", "mean", "fmean", "quantile", "std"}


def arithmetic() -> Iterator[tuple[str, str]]:
    """Yield what report/ computes from results; a factor that is a number changes the unit only."""
    for name, module in modules().items():
        if not name.startswith(f"{PACKAGE}.report"):
            continue
        for node in module.nodes:
            if computes(node) and reads_results(node):
                yield f"{module.file}: {ast.unparse(node)}", f"line {node.lineno}"


def computes(node: ast.AST) -> TypeGuard[ast.BinOp | ast.Call]:
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, (ast.BitAnd, ast.BitOr)) and not any(
            isinstance(side, ast.Constant) for side in (node.left, node.right))
    return isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)) and (
        ast.unparse(node.func).rpartition(".")[2] in COUNTING)


def reads_results(node: ast.AST) -> bool:
    names = (one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute))
    return any(MEASURED.search(name) and not name.startswith("_") and name not in OF_THE_PLAN
               for name in names)


MOST_LINES, MOST_PARAMETERS, MOST_FILE_LINES, MOST_CORE_LINES = 60, 6, 600, 50_000
LONG_LISTS: Mapping[str, str] = {
    "hpcbench/kinds/primitive/run/implementations/triton_kernel.py: multiply_tiles":
        "a Triton kernel takes pointers, strides and extents one by one",
    "hpcbench/api/measure.py: measure":
        "a user's call: keywords, nearly all of which are left out",
}


def long_functions() -> Iterator[tuple[str, str]]:
    for module in modules().values():
        for node in module.functions():
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MOST_LINES:
                yield f"{module.file}: {node.name}", f"{lines} lines"


def long_parameter_lists() -> Iterator[tuple[str, str]]:
    """Yield functions that take too much; the parameters of a command are its flags."""
    for module in (one for name, one in modules().items() if ".commands." not in f"{name}."):
        for node in module.functions():
            count, found = parameters(node), f"{module.file}: {node.name}"
            if count > MOST_PARAMETERS and found not in LONG_LISTS:
                yield found, f"{count} parameters"


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a function has; self and cls do not count."""
    args = node.args
    named = [one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return len([name for name in named if name not in {"self", "cls"}]) + sum(
        one is not None for one in (args.vararg, args.kwarg))


def long_files() -> Iterator[tuple[str, str]]:
    for module in modules().values():
        lines = len(module.text.splitlines())
        if lines > MOST_FILE_LINES:
            yield module.file, f"{lines} lines"


SAME_MEANING = f"{KINDS}.primitive.run.implementations."
"""Its modules name their classes after the primitives that they implement."""


def names_with_two_meanings() -> Iterator[tuple[str, str]]:
    """Yield classes of the package that have the name of another."""
    first: dict[str, str] = {}
    for name, module in modules().items():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and not name.startswith(SAME_MEANING):
                place = f"{module.file}:{node.lineno}"
                if first.setdefault(node.name, place) != place:
                    yield f"{module.file}: {node.name}", f"and {first[node.name]}"
