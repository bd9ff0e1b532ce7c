"""The model of a training and its loss, of either kind, built as the training is configured.

A block that is computed again or compiled gets a class with another ``forward``. That runs inside
of the hooks of strategies, such as gathering the block's weights, and does not prolong its memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from hpcbench.kinds.training.plan.any_model import ResNetShape, model_of
from hpcbench.kinds.training.plan.models import ATTENTION, is_recomputed, keeps_products
from hpcbench.kinds.training.plan.workload import LINEAR, OFFLOAD, Training
from hpcbench.kinds.training.run.models.experts import MixtureOfExperts
from hpcbench.kinds.training.run.models.model import Model, Part, ResNet, mean_loss
from hpcbench.kinds.training.run.models.transformer import Transformer
from hpcbench.operations.models import OWN_LIBRARY

_PRODUCTS = {
    "aten": ("mm", "addmm", "_scaled_mm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention",
             "_scaled_dot_product_flash_attention_for_cpu",
             "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
             "_scaled_dot_product_fused_attention_overrideable"),
    "bitsandbytes": ("gemm_4bit",)}
"""Operations of products of matrices and of attention, with any kernel of torch, and of products
with weights in 4 bits, where bitsandbytes was imported."""
BACKEND = "inductor"  # of torch.compile
WARMUP_CALLS = 2
"""Calls of a step until all is compiled: a second one may differ from the first in what there is
to be accumulated."""
Forward = Callable[..., Any]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Treatment = Callable[[nn.Module], object]  # what is done to a part of a model that has its weights
Fill = Callable[[Model, Part], object]
"""Gives a part of a draft memory and its weights of the seed."""


def make_model(work: Training, blocks: range | None = None) -> Model:
    """Return the model of a training, or our stage with ``blocks``; weights are not set."""
    shape = model_of(work)
    model: Model
    if isinstance(shape, ResNetShape):
        model = ResNet(shape, blocks)
    elif work.library == OWN_LIBRARY:
        model = Transformer(shape, blocks, fused=work.loss == LINEAR)
    else:  # importing the library takes seconds, and not everyone has it
        from hpcbench.kinds.training.run.models.library import LibraryModel

        model = LibraryModel(shape, work.model)
    alter({part.number: part.module for part in model.parts() if part.number is not None},
          work.checkpointing, work.compile)
    return model.to(torch.bfloat16) if work.is_narrow else model


def make_loss(work: Training) -> Loss:
    """Return the loss of logits and targets, compiled if blocks are.

    Not where ranks have parts of the logits: torch compiles no graph that begins with a tensor that
    is still being communicated."""
    return compiled(mean_loss) if work.compile and work.tp == 1 else mean_loss


def build(
    draft: Model, device: torch.device, fill: Fill, divide: Treatment = lambda _: None,
    shard: Treatment = lambda _: None,
) -> Model:
    """Return a model, or a stage of one, that had no memory, on the device with its weights.

    It is built part by part, never all of it whole: ``divide`` is done to each part, ``shard`` then
    to each block, and at the end to the model."""
    for part in draft.parts():
        fill(draft, part)
        divide(part.module)
        if part.number is not None:
            shard(part.module)
    draft.complete(device)
    shard(draft)
    return draft


def alter(blocks: Mapping[int, nn.Module], checkpointing: str, compiles: bool) -> None:
    kinds: dict[tuple[type[nn.Module], bool, bool], type[nn.Module]] = {}
    if checkpointing == ATTENTION:
        alter({number: block.get_submodule(ATTENTION) for number, block in blocks.items()},
              "full", compiles=False)
    with_experts = [number for number, block in blocks.items()
                    if compiles and isinstance(getattr(block, "mlp", None), MixtureOfExperts)]
    if with_experts:  # hooks of FSDP around experts, and their exchanges, are in no graph
        alter({number: blocks[number].get_submodule(ATTENTION) for number in with_experts},
              "none", compiles=True)
    for number, block in blocks.items():
        again = checkpointing == OFFLOAD or (
            checkpointing != ATTENTION and is_recomputed(checkpointing, number))
        whole = compiles and number not in with_experts
        if again or whole:
            key = type(block), again, whole
            kinds[key] = kinds.get(key) or _kind(
                type(block), _rerun(checkpointing) if again else None, whole)
            block.__class__ = kinds[key]


def products() -> list[Any]:
    return [getattr(operators, name).default for library, names in _PRODUCTS.items()
            for operators in (getattr(torch.ops, library),) for name in names
            if hasattr(operators, name)]


def compiled(function: Forward) -> Forward:
    """Return a function compiled for each shape, as one graph; by one thread, without a pool."""
    options = {"compile_threads": 1} if BACKEND == "inductor" else None
    graph: Forward = torch.compile(
        function, fullgraph=True, dynamic=False, backend=BACKEND, options=options)
    return graph


def forget() -> None:
    """Drop what was compiled, and its models' memory: torch gives up on a function after eight."""
    torch.compiler.reset()
    gc.collect()


def graphs() -> int:
    # The compiler takes a second to import, so only a caller that needs it waits.
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _kind(kind: type[nn.Module], rerun: Forward | None, compiles: bool) -> type[nn.Module]:
    """Return a class whose forward is another. It is set later: transformers changes new ones."""
    plain = kind.forward

    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        if rerun is None or not torch.is_grad_enabled():
            return plain(self, *arguments, **named)
        if rerun is offloaded:
            named["weights"] = self.parameters()
        return rerun(partial(plain, self), *arguments, **named)

    altered: Any = type(kind.__name__, (kind,), {})
    altered.forward = compiled(forward) if compiles else forward
    return altered  # type: ignore[no-any-return]


class OnHost:
    """A storage that a block keeps for backward, in the host's memory until then; it is brought
    back once."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.device = storage.device
        self._host = to_host(torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage))
        self._back: torch.UntypedStorage | None = None

    def back(self) -> torch.UntypedStorage:
        if self._back is None:
            self._back = self._host.to(self.device, non_blocking=True).untyped_storage()
        return self._back


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def offloaded(
    function: Forward, *arguments: Any, weights: Iterable[nn.Parameter], **named: Any,
) -> Any:
    """Call a block's forward; what it keeps for backward is on the host until then, but for its
    ``weights``. torch's ``save_on_cpu`` would move these, too, and a tensor at each use."""
    own = {one.untyped_storage().data_ptr() for one in weights}
    moved: dict[int, tuple[OnHost, torch.Tensor]] = {}  # with the tensor: no other has its place

    def keep(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in own:
            return tensor
        if storage.data_ptr() not in moved:
            moved[storage.data_ptr()] = OnHost(storage), tensor
        return (moved[storage.data_ptr()][0], tensor.dtype, tensor.storage_offset(), tensor.size(),
                tensor.stride())

    with torch.autograd.graph.saved_tensors_hooks(keep, _brought_back):
        return function(*arguments, **named)


def _brought_back(kept: Any) -> torch.Tensor:
    if isinstance(kept, torch.Tensor):
        return kept
    on_host, dtype, *place = kept
    return torch.empty(0, dtype=dtype, device=on_host.device).set_(on_host.back(), *place)


def _rerun(checkpointing: str) -> Forward:
    if checkpointing == OFFLOAD:
        return offloaded
    rerun = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if not keeps_products(checkpointing):
        return rerun
    return partial(rerun, context_fn=partial(create_selective_checkpoint_contexts, products()))
