"""scipy's distributions without the package around them, whose import takes ten times as long.

That package makes room for arrays of other libraries, and imports numpy.f2py for it. The compiled
module below it is private, so the package is taken where it cannot be loaded alone."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

_FUNCTIONS = ("stdtr", "stdtrit", "chdtrc", "fdtrc")


@cache
def distributions() -> Any:
    """Return a module with `_FUNCTIONS` of scipy.special.

    Loaded when first needed: commands that only read or plan do without scipy."""
    import scipy

    name = "scipy.special"
    if name not in sys.modules:
        around = ModuleType(name)
        around.__path__ = [f"{folder}/special" for folder in scipy.__path__]
        sys.modules[name] = around
        try:
            alone = importlib.import_module(f"{name}._ufuncs")
            if all(hasattr(alone, function) for function in _FUNCTIONS):
                return alone
        except ImportError:
            pass
        finally:
            del sys.modules[name]  # whoever imports it later gets all of it
    return importlib.import_module(name)
