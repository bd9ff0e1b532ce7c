"""Strategy ``qlora``: low-rank adapters beside frozen weights in 4 bits."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.kinds.training.plan.adapters import NF4_BLOCK
from hpcbench.kinds.training.plan.low_rank import low_rank_layout, low_rank_strategy
from hpcbench.kinds.training.plan.workload import Training


def _rows_are_blocks(work: Training) -> str | None:
    """Return why weights cannot be held in 4 bits, or None.

    bitsandbytes packs blocks that follow one another, whatever the rows; its CPU kernel (0.50.2)
    unpacks as if each row began with a new one, and so gives other weights where it does not.
    """
    return next((f"{what}={extent} is not a multiple of {NF4_BLOCK}: the rows of weights must be "
                 f"whole blocks of NF4" for what, extent in (
                     ("hidden", work.hidden), ("inner", work.inner)) if extent % NF4_BLOCK), None)


SPEC = replace(low_rank_strategy(
    "qlora", "the same over weights in 4 bits (NF4, peft and bitsandbytes)",
    modules=("peft", "bitsandbytes"), order=110,
    layout=lambda work: low_rank_layout(work, packed=True)), unfit=_rows_are_blocks)
