"""Python's garbage collector, kept out of what is timed and of imports."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MANY_OBJECTS = 50_000
"""About those of two figures."""


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, and not again before the block ends; then as before."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def no_collection_of_modules() -> Iterator[None]:
    """Collect nothing while modules are imported in the block, and never look at them again.

    Modules stay until the process ends. Looking through them again and again takes a seventh of an
    import of torch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Collect rarely while the block makes and drops many objects, as reading and drawing do.

    Looking for garbage after each 700 new objects takes a seventh of a report's time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_MANY_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def spare_what_is_loaded() -> None:
    """Have no later collection look at what is there now: at all of torch it takes 0.2 s."""
    gc.collect()
    gc.freeze()
