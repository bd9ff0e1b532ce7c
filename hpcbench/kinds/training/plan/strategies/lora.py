"""Strategy ``lora``: low-rank adapters beside frozen weights."""

from __future__ import annotations

from hpcbench.kinds.training.plan.low_rank import low_rank_layout, low_rank_strategy

SPEC = low_rank_strategy(
    "lora", "low-rank adapters are trained, the model is frozen (peft)", modules=("peft",),
    layout=lambda work: low_rank_layout(work, packed=False), order=100)
