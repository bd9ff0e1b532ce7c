"""Python's garbage collector, kept out of what is timed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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


def spare_what_is_loaded() -> None:
    """Have no later collection look at what is there now: at all of torch it takes 0.2 s."""
    gc.collect()
    gc.freeze()
