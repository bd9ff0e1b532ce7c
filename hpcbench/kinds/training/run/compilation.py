"""What torch compiles for a training: counted, so that no step that is timed compiles anything."""

from __future__ import annotations

import gc

import torch

SETTLING = 2
"""Calls of a step until all is compiled: a second one may differ from the first in what there is
to be accumulated."""


def forget() -> None:
    """Drop what was compiled before, and the memory of the models that it was compiled for.

    torch gives up on a function that was compiled for eight models, and runs it as it is.
    """
    torch.compiler.reset()
    gc.collect()


def graphs() -> int:
    """Return how many graphs were compiled in this process."""
    # The compiler takes a second to import, so only a caller that needs it waits.
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
