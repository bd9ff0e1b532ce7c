"""hpcbench: an MPI-launched benchmark toolkit for distributed deep learning.

Its public names are loaded when they are first used: importing this module loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcbench.api.load import Runs as Runs
    from hpcbench.api.load import load as load
    from hpcbench.api.measure import measure as measure
    from hpcbench.api.measurement import Measurement as Measurement
    from hpcbench.errors import MeasureError as MeasureError
    from hpcbench.errors import Skip as Skip
    from hpcbench.operations.context import Context as Context
    from hpcbench.operations.functions import TimedCall as Case
    from hpcbench.operations.functions import benchmark as benchmark

    __all__ = ["Case", "Context", "MeasureError", "Measurement", "Runs", "Skip", "benchmark",
               "load", "measure"]

__version__ = "0.1.0"
_PUBLIC: Mapping[str, str] = MappingProxyType({
    "benchmark": "hpcbench.operations.functions:benchmark",
    "Case": "hpcbench.operations.functions:TimedCall",
    "Context": "hpcbench.operations.context:Context",
    "MeasureError": "hpcbench.errors:MeasureError",
    "Skip": "hpcbench.errors:Skip",
})
"""Public name -> its place; parts offer others, by entry points of the group ``hpcbench.names``."""


def __getattr__(name: str) -> Any:
    """Return a public name. Raises AttributeError for others."""
    from importlib import import_module

    registry = import_module("hpcbench.registry")
    offers = () if name in _PUBLIC else registry.entry_points("hpcbench.names")
    path = _PUBLIC.get(name) or next((one.value for one in offers if one.name == name), None)
    if path is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return registry.load(path)
