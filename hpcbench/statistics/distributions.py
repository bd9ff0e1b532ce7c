"""scipy's distributions without the package around them, whose import takes ten times as long.

That package makes room for arrays of other libraries, and imports numpy.f2py for it. The compiled
module below it is private, so the package is taken where it cannot be loaded alone."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any


@cache
def distributions() -> Any:
    """Return a module with ``stdtr``, ``stdtrit``, ``chdtrc`` and ``fdtrc`` of scipy.special.

    Loaded when first needed: commands that only read or plan do without scipy."""
    import scipy

    name = "scipy.special"
    if name not in sys.modules:
        around = ModuleType(name)
        around.__path__ = [f"{folder}/special" for folder in scipy.__path__]
        sys.modules[name] = around
        try:
            return importlib.import_module(f"{name}._ufuncs")
        except ImportError:
            pass
        finally:
            del sys.modules[name]  # whoever imports it later gets all of it
    return importlib.import_module(name)
