"""Where modules of hpcbench 0.1 are now, for plans that it stored and plug-ins that import them.

The old names work for one more version: plug-ins should import `hpcbench.plugins`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

MODULES: Mapping[str, str] = MappingProxyType({
    "hpcbench.plan.primitives": "hpcbench.kinds.primitive.plan",
    "hpcbench.plan.training": "hpcbench.kinds.training.plan",
    "hpcbench.workloads": "",
    "hpcbench.workloads.collectives": "hpcbench.kinds.collective.run",
    "hpcbench.workloads.collectives.check": "hpcbench.operations.data",
    "hpcbench.workloads.collectives.data": "hpcbench.operations.data",
    "hpcbench.workloads.primitives": "hpcbench.kinds.primitive.run",
    "hpcbench.workloads.training": "hpcbench.kinds.training.run",
    "hpcbench.workloads.primitives.operands": "hpcbench.kinds.primitive.run.operands",
    "hpcbench.workloads.primitives.inputs": "",
    **{f"hpcbench.workloads.primitives.inputs.{name}": "hpcbench.kinds.primitive.run.inputs"
       for name in ("base", "dp_allreduce", "ep_all_to_all", "tp_columnwise", "tp_mlp",
                    "tp_rowwise")},
})
"""Old module or package -> new one; empty for a package of packages. The longest name counts."""
NAMES: Mapping[str, str] = MappingProxyType({
    "hpcbench.plan.workload.Collective": "hpcbench.kinds.collective.plan.workload",
    "hpcbench.plan.workload.Primitive": "hpcbench.kinds.primitive.plan.workload",
    "hpcbench.plan.workload.Training": "hpcbench.kinds.training.plan.workload",
})
"""Names that left a module which is still there -> the module that has them now."""


def today(path: str) -> str:
    """Return where a module, or the ``module:name`` of a stored plan, is now."""
    module, colon, name = path.partition(":")
    old = _longest(module)
    new = f"{MODULES[old]}{module[len(old):]}" if old else module
    return f"{new}{colon}{name}"


def moved_name(module: str, name: str) -> Any:
    """Return what left a module, for its ``__getattr__``. Raises AttributeError."""
    if f"{module}.{name}" not in NAMES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(import_module(NAMES[f"{module}.{name}"]), name)


def install_aliases() -> None:
    """Let the old names of modules be imported; what is imported is the module of today."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aliases())  # first: packages of today would be searched, too


def _longest(module: str) -> str | None:
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in MODULES), None)


class _Aliases(MetaPathFinder, Loader):
    """Finds modules by their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return how to import an old name; None for every other."""
        is_old = _longest(fullname) is not None and not today(fullname).startswith(".")
        return ModuleSpec(fullname, self, is_package=True) if is_old else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in the place of the empty one."""
        if new := today(module.__name__):
            sys.modules[module.__name__] = import_module(new)
