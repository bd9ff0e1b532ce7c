"""What may import what: the table of the flow, and where heavy libraries may be reached from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from package_source import KINDS, PACKAGE, Import, Module, libraries_of, modules, room_of

PARTS: Mapping[str, tuple[str, ...]] = {
    "analysis": (), "validation": (), "api": (), "interop": (), "fleet": ("analysis",),
    "prediction": ()}
"""Folders behind a wall, each with those of the others that it needs."""
IN_FOLDERS = ("interop", "fleet")
"""Those with a row for each of their folders."""
BASE = ("hpcbench", "registry", "errors", "import_path", "limits", "plain", "records", "texts",
        "units")
INTERFACES = ("kinds", "kinds.registry")
PLANNING = (*BASE, *INTERFACES, "operations", "config")
RECORDS = (*PLANNING, "statistics", "plan", "trace")
MACHINE = (*RECORDS, "measurement", "backends")
READING = (*RECORDS, "measurement", "reduce")
MAY_IMPORT: Mapping[str, Sequence[str]] = {
    "hpcbench": (), "errors": ("texts",), "import_path": (), "limits": ("errors",),
    "texts": ("units",),
    "plain": (), "records": (), "units": (), "kinds": (),
    "registry": ("errors", "records"),
    "kinds.registry": ("kinds", "records", "registry", "errors"),
    "statistics": BASE,
    "operations": BASE,
    "config": (*BASE, *INTERFACES, "operations"),
    "plan": PLANNING,
    "trace": (*PLANNING, "plan"),
    "measurement": RECORDS,
    "backends": (*RECORDS, "measurement"),
    "telemetry": MACHINE,
    "launch": (*MACHINE, "profiling", "telemetry"),
    "reduce": (*RECORDS, "measurement"),
    "answers": (*READING, "reduce", "views"),
    "profiling": (*READING, "views"),
    "views": (*PLANNING, "plan", "trace", "reduce"),
    "report": (*PLANNING, "plan", "trace", "reduce", "views", "answers"),
    # its commands, which the command line finds as it finds those of parts
    "kinds.*.offers": ("registry",),
    "kinds.*.commands": (*PLANNING, "commands", "plan", "views", "report", "kinds.*.plan"),
    # the sides of a kind; each may import its own room's plan side, too
    "kinds.*": ("kinds.registry",), "kinds.*.public": ("kinds.*.plan", "kinds.*.run"),
    "kinds.*.block": (*PLANNING, "kinds.*.plan"),
    "kinds.*.plan": (*PLANNING, "plan", "kinds.*.block"),
    "kinds.*.run": (*MACHINE, "kinds.*.block", "kinds.*.plan"),
    "kinds.*.derive": (*READING, "kinds.*.block", "kinds.*.plan"),
    "kinds.*.present": (*PLANNING, "plan", "trace", "reduce", "views", "kinds.*.block",
                        "kinds.*.plan", "kinds.*.derive"),
    # processes and commands stand above all folders
    "worker": (*MACHINE, "launch", "profiling"),
    "template": (*MACHINE, "launch", "profiling", "worker"),
    "resume": (*READING, "launch"),
    "gen_config": (*MACHINE, "launch"),
    "gen_data": READING,
    "dry_run": (*MACHINE, "launch", "report"),
    "run": (*MACHINE, "launch", "reduce", "answers", "report", "resume", "profiling", "worker"),
    "suite": (*MACHINE, "launch", "reduce", "report", "resume", "run"),
    "commands": (*BASE, *INTERFACES, "config", "plan", "launch", "measurement", "reduce", "answers",
                 "report", "run", "dry_run", "gen_config", "gen_data", "profiling", "resume",
                 "suite"),
    "cli": (*BASE, "commands"),
    "__main__": (*BASE, "cli", "launch"),
    # behind walls: nothing of the core imports them, also not inside a function or for their types
    "analysis": (*READING, "answers", "views"),
    "validation": (*MACHINE, "commands", "launch", "views", "report"),
    # what programs of others call: `hpcbench.measure`, `hpcbench.load`
    "api": (*MACHINE, "reduce", "answers", "launch"),
    "interop": (), "interop.offers": ("registry",),
    "interop.answers": (*READING, "reduce", "answers", "views", "interop.dialects"),
    "interop.commands": (*BASE, *INTERFACES, "config", "commands", "measurement", "reduce",
                         "report", "gen_config", "interop.*"),
    # sweeps of other tools
    "interop.dialects": (*PLANNING,),
    # files of other programs: what they read, and what they wrote
    "interop.formats": (*READING, "reduce", "answers", "views", "report", "kinds.*.plan",
                        "interop.answers"),
    # programs under the names of nccl-tests'
    "interop.compat": (*PLANNING, "measurement", "launch", "reduce", "interop.formats", "resume",
                       "run", "__main__"),
    "compat": ("interop.compat",),
    # what a job communicated: its file, and other programs' records of it
    "interop.traffic": (*PLANNING, "statistics", "trace", "interop.formats", "launch",
                        "profiling"),
    "interop.anonymize": (*READING, "report", "interop.pseudonyms"),
    "interop.pseudonyms": BASE,
    # many nodes and many weeks, behind the same wall
    "fleet": (), "fleet.offers": ("registry",),
    "fleet.commands": (*MACHINE, "commands", "reduce", "answers", "views", "report", "gen_config",
                       "fleet.*"),
    "fleet.history": (*READING, "reduce", "answers", "views", "report"),
    "fleet.hunt": (*MACHINE, "launch", "telemetry", "reduce", "answers", "analysis", "views",
                   "report"),
    "fleet.acceptance": (*PLANNING, "plan", "trace", "gen_config"),
    "fleet.soak": (*MACHINE, "launch", "reduce", "answers", "resume", "run"),
    # other numbers of ranks
    "prediction": (*READING, "answers", "views", "report", "commands", "gen_config"),
    # the public door for packages of others: it may show anything, and nothing here uses it
    "plugins": (*MACHINE, "reduce", "views", "answers", "kinds.*.plan", "kinds.*.run",
                "kinds.*.derive", "kinds.*.present"),
}
"""Folder or module -> what it may import beside itself. ``kinds.*`` is one and the same kind."""

OF_ANOTHER_KIND: Mapping[str, str] = {
    "kinds.memory": "kinds.training",  # what it measures is a training: its plan, its steps
}
"""A kind -> the kind that it is about: each of its sides may import what the other's own may."""


def unit_of(name: str) -> str:
    """Return the row of MAY_IMPORT for a module; a kind's name stays in it."""
    parts = name.split(".")[1:]
    if not parts:
        return PACKAGE
    if parts[0] in IN_FOLDERS:
        return ".".join(parts[:2])
    if parts[0] != "kinds":
        return parts[0]
    return ".".join(parts[:3] if room_of(name) else parts[:2])


def is_allowed(user: str, used: str) -> bool:
    kind = room_of(f"{PACKAGE}.{user}") if user.startswith("kinds.") else None
    row = user.replace(f"kinds.{kind}", "kinds.*") if kind else user
    allowed = [one.replace("kinds.*", f"kinds.{kind or '*'}") for one in MAY_IMPORT[row]]
    if other := OF_ANOTHER_KIND.get(f"kinds.{kind}"):
        allowed += [one.replace(f"kinds.{kind}", other) for one in (user, *allowed)]
    return user == used or any(fnmatchcase(used, one) for one in allowed)


def forbidden_imports() -> Iterator[tuple[str, str]]:
    """Yield imports against the flow, with their place; those for type checkers do not count."""
    for module, one in package_imports():
        user, used = unit_of(module.name), unit_of(one.target)
        short = module.name.removeprefix(f"{PACKAGE}.")
        if one.typing or is_allowed(user, used):
            continue
        yield f"{short} -> {one.target.removeprefix(PACKAGE + '.')}", f"{module.file}:{one.line}"


def walls_broken() -> Iterator[tuple[str, str]]:
    """Yield what names, as an import or as the text of one, a part that it can be without."""
    for module in modules().values():
        own = f"{module.name}.".replace("hpcbench.compat.", "hpcbench.interop.")
        room = own.split(".")[1]
        walled = [part for part in PARTS if part not in (room, *PARTS.get(room, ()))]
        names = [(one.target, one.line) for one in module.imports
                 if not (one.typing and module.name == PACKAGE)]  # its face, for type checkers
        names += [(node.value, node.lineno) for node in module.nodes
                  if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        yield from ((f"{module.file}: {name}", f"line {line}") for name, line in names
                    if re.match(rf"{PACKAGE}\.({'|'.join(walled)})\b", name))


def package_imports() -> Iterator[tuple[Module, Import]]:
    for module in modules().values():
        for one in module.imports:
            if one.target.partition(".")[0] == PACKAGE:
                yield module, one


KIND_RUN = f"{KINDS}.*.run*"
TORCH = (KIND_RUN, "hpcbench.worker", "hpcbench.measurement.faults",
         "hpcbench.profiling.capture", *(
    f"hpcbench.operations.{name}" for name in
    ("context", "data", "job_folder", "operation", "place")), *(
    f"hpcbench.backends.{name}" for name in
    ("counting_backend", "devices", "dry_step", "facts", "groups", "mpi_buffers", "mpi_group",
     "process_state", "python_group")))
MPI = ("hpcbench.backends.mpi_*",)
PLAN_SIDE = ("hpcbench.config*", "hpcbench.kinds.registry",
             f"{KINDS}.*.block", f"{KINDS}.*.plan", f"{KINDS}.*.plan.*", "hpcbench.plan",
             "hpcbench.plan.*",
             "hpcbench.cli", "hpcbench.commands", "hpcbench.commands.*")
ONLY_FROM: Mapping[str, Sequence[str]] = {
    "torch": TORCH, "mpi4py": MPI, "matplotlib": ("hpcbench.report.plots*",),
    "triton": (KIND_RUN,), "transformers": (KIND_RUN,), "peft": (KIND_RUN,),
    "bitsandbytes": (KIND_RUN,), "scipy": (), "pynvml": (),
}
"""Library -> the modules that may load it when they are imported."""
BEFORE_TORCH = ("hpcbench.__main__", "hpcbench.launch.template_process")
"""What a rank imports before its template begins to import torch, which takes longest."""
NEVER_FROM: Mapping[str, Sequence[str]] = {
    "numpy": PLAN_SIDE, "h5py": PLAN_SIDE, "typer": BEFORE_TORCH, "pydantic": BEFORE_TORCH}


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def misplaced_libraries() -> Iterator[tuple[str, str]]:
    """Yield modules that load a library where it must not be, with who imports it."""
    for name in modules():
        for library, user in libraries_of(name).items():
            wrong = (library in ONLY_FROM and not matches(name, ONLY_FROM[library])
                     or matches(name, NEVER_FROM.get(library, ())))
            if wrong:
                yield f"{name} loads {library}", f"by {user}"


def import_circles() -> Iterator[tuple[str, str]]:
    """Yield modules that reach themselves, also by lazy imports and those for type checkers."""
    known = modules()
    edges: dict[str, set[str]] = {name: set() for name in known}
    for module, one in package_imports():
        target = one.target if one.target in known else one.target.rpartition(".")[0]
        if target in known and target != module.name:
            edges[module.name].add(target)
    reached = {name: set(found) for name, found in edges.items()}
    for middle in known:
        for found in reached.values():
            if middle in found:
                found |= reached[middle]
    yield from ((name, "it reaches itself") for name, found in reached.items() if name in found)
