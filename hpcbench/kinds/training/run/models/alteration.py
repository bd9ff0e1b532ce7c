"""How blocks are run other than as they are written: computed again in backward, and compiled.

A block gets a class of its own with another ``forward``. That stands inside of what strategies hook
to the block, such as gathering its weights, which is then neither compiled nor done again. An
attribute of the block would hold the block itself, whose memory would outlive its last user.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from hpcbench.kinds.training.plan.models import is_recomputed, keeps_products

_PRODUCTS = {
    "aten": ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention",
             "_scaled_dot_product_flash_attention_for_cpu",
             "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
             "_scaled_dot_product_fused_attention_overrideable"),
    "bitsandbytes": ("gemm_4bit",)}
"""What products of matrices and attention become, whichever kernel torch chooses, and products with
weights in 4 bits, where bitsandbytes was imported."""
BACKEND = "inductor"
"""Of torch.compile."""
SETTLING = 2
"""Calls of a step until all is compiled: a second one may differ from the first in what there is
to be accumulated."""
Forward = Callable[..., Any]


def alter(blocks: Mapping[int, nn.Module], checkpointing: str, compiles: bool) -> None:
    """Apply checkpointing and compilation to blocks, by their numbers in the whole model."""
    kinds: dict[tuple[type[nn.Module], bool], type[nn.Module]] = {}
    for number, block in blocks.items():
        again = is_recomputed(checkpointing, number)
        if again or compiles:
            key = type(block), again
            kinds[key] = kinds.get(key) or _kind(
                type(block), _rerun(checkpointing) if again else None, compiles)
            block.__class__ = kinds[key]


def products() -> list[Any]:
    """Return the operators whose results are kept by ``checkpointing: operators``."""
    return [getattr(operators, name).default for library, names in _PRODUCTS.items()
            for operators in (getattr(torch.ops, library),) for name in names
            if hasattr(operators, name)]


def compiled(function: Forward) -> Forward:
    """Return a function that is compiled for each shape it is called with, as one graph.

    One thread compiles: torch would keep a pool of processes beside a worker that measures.
    """
    options = {"compile_threads": 1} if BACKEND == "inductor" else None
    graph: Forward = torch.compile(
        function, fullgraph=True, dynamic=False, backend=BACKEND, options=options)
    return graph


def forget() -> None:
    """Drop what was compiled before, and the memory of the models that it was compiled for.

    torch gives up on a function that was compiled for eight models, and runs it as it is.
    """
    torch.compiler.reset()
    gc.collect()


def graphs() -> int:
    """Return how many graphs were compiled in this process: no step that is timed adds to them."""
    # The compiler takes a second to import, so only a caller that needs it waits.
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _kind(kind: type[nn.Module], rerun: Forward | None, compiles: bool) -> type[nn.Module]:
    """Return a class whose forward is another. It is set later: transformers changes new ones."""
    plain = kind.forward

    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        if rerun is None or not torch.is_grad_enabled():
            return plain(self, *arguments, **named)
        return rerun(partial(plain, self), *arguments, **named)

    altered: Any = type(kind.__name__, (kind,), {})
    altered.forward = compiled(forward) if compiles else forward
    return altered  # type: ignore[no-any-return]


def _rerun(checkpointing: str) -> Forward:
    """Return what calls a function, and calls it again in backward."""
    rerun = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if not keeps_products(checkpointing):
        return rerun
    return partial(rerun, context_fn=partial(create_selective_checkpoint_contexts, products()))
