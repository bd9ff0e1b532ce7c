"""What can be trained how: one pure function with the reason why not, known without a machine."""

from __future__ import annotations

from hpcbench.config.names import OWN_LIBRARY
from hpcbench.plan.training.spec import StrategySpec
from hpcbench.plan.workload import Training


def why_not(work: Training, spec: StrategySpec) -> str | None:
    """Return why a model, its sizes and a strategy do not go together, or None."""
    return _of_library(work) or _uncompiled(work) or _indivisible(work) or spec.unfit(work)


def _uncompiled(work: Training) -> str | None:
    """Return why torch does not compile this, or None; seen with torch 2.13."""
    again = work.checkpointing in ("selective", "full")
    if not work.compile or work.tp == 1 or not again:
        return None
    return (f"torch compiles no block that is divided among ranks and, with checkpointing "
            f"{work.checkpointing}, computed again whole; operators it does")


def _of_library(work: Training) -> str | None:
    """Return why the model of another library cannot be trained so, or None."""
    if work.library == OWN_LIBRARY or work.tp * work.pp == 1:
        return None
    return (f"{work.strategy} divides hpcbench's own model, which has the exact shape: the one of "
            f"library {work.library} is trained whole, by single, data, zero1, fsdp and hsdp")


def _indivisible(work: Training) -> str | None:
    """Return what would have to be divided evenly and cannot be, or None."""
    extents = (
        (work.hidden, "hidden", work.heads, "attention heads"),
        (work.heads, "attention heads", work.kv_heads, "key-value heads"),
        (work.batch_size, "samples (batch_size)", work.accumulation, "equal parts (accumulation)"),
        (work.heads, "attention heads", work.tp, "ranks (tp)"),
        (work.kv_heads, "key-value heads", work.tp, "ranks (tp)"),
        (work.inner, "columns of the MLP", work.tp, "ranks (tp)"),
        (work.layers, "layers", work.pp, "stages (pp)"),
    )
    return next((f"{extent} {what} cannot be divided evenly among {count} {parts}"
                 for extent, what, count, parts in extents if extent % count), None)
