"""hpcbench: an MPI-launched benchmark toolkit for distributed deep learning.

Its public names are loaded when they are first asked for: importing this module loads no torch.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
_PUBLIC: dict[str, str] = {
    "MeasureError": "hpcbench.errors",
    "Measurement": "hpcbench.api.measurement",
    "measure": "hpcbench.api.measure",
}
"""Public name -> the module that has it."""


def __getattr__(name: str) -> Any:
    """Return a public name. Raises AttributeError for others."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)
