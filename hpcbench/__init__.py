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
_PUBLIC: Mapping[str, tuple[str, str]] = MappingProxyType({
    "benchmark": ("hpcbench.operations.functions", "benchmark"),
    "Case": ("hpcbench.operations.functions", "TimedCall"),
    "Context": ("hpcbench.operations.context", "Context"),
    "load": ("hpcbench.api.load", "load"),
    "Runs": ("hpcbench.api.load", "Runs"),
    "measure": ("hpcbench.api.measure", "measure"),
    "Measurement": ("hpcbench.api.measurement", "Measurement"),
    "MeasureError": ("hpcbench.errors", "MeasureError"),
    "Skip": ("hpcbench.errors", "Skip"),
})
"""Public name -> its module, and its name there."""


def __getattr__(name: str) -> Any:
    """Return a public name. Raises AttributeError for others."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, own = _PUBLIC[name]
    return getattr(import_module(module), own)
