"""Tensor parallelism: the ranks divide every layer.

Shoeybi et al., Megatron-LM, arXiv:1909.08053 (2019): the first product of attention and MLP is
divided by columns, the second by rows, and one all-reduce follows. With ``sequence_parallel``
(Korthikanti et al., arXiv:2205.05198, 2022) ranks divide the tokens between those: the all-reduce
becomes a reduce-scatter before and an all-gather behind what each then does for its tokens only.
With ``loss_parallel`` the logits stay divided and the loss is computed of the parts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from hpcbench.kinds.training.plan.spec import layout_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.build import Fill, build
from hpcbench.kinds.training.run.models.experts import MixtureOfExperts
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.models.transformer import Embedding, TransformerBlock
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.context import OwnTokens
from hpcbench.kinds.training.run.strategies.moe import SpreadExperts, WithExperts
from hpcbench.kinds.training.run.strategies.replica import GroupWatch, Replica, Sharder
from hpcbench.operations.place import Place

Styles = dict[str, ParallelStyle]


class Divider:
    """How parts of a model are divided among the ranks of a mesh of one dimension."""

    def __init__(self, mesh: DeviceMesh | None, spec: Training) -> None:
        self._mesh = mesh  # None: nothing is divided
        layout = layout_of(spec)
        self._by_tokens = mesh is not None and layout.by_tokens
        self._by_words = mesh is not None and layout.by_words
        self._compiles = spec.compile
        self._kv_heads = max(spec.kv_heads, 1)  # a ResNet has none
        self._copies = spec.tp // self._kv_heads

    def divide(self, part: nn.Module) -> None:
        """Divide the parameters of an embedding, a block or a head."""
        if self._mesh is None:
            return
        if isinstance(part, Embedding):
            styles = self._embedding()
        elif isinstance(part, TransformerBlock):
            styles = self._block(part)
        else:
            styles = self._head(part)
        present = {name: style for name, style in styles.items()
                   if getattr(part, name.partition(".")[0]) is not None}
        if isinstance(part, TransformerBlock) and isinstance(part.mlp, MixtureOfExperts):
            self._share_router(part.mlp)
        # Each rank has computed the whole weights from the seed: none is to be sent.
        parallelize_module(part, self._mesh, present, src_data_rank=None)
        if isinstance(part, TransformerBlock) and self._copies > 1:
            for product in (part.attention.k, part.attention.v):
                product.register_forward_hook(lambda _product, _inputs, all_: self._own_head(all_))
        if self._compiles and isinstance(part, Embedding):
            # The input of a compiled block must be there: torch 2.13 sends the gradient of a tensor
            # that is still being communicated past its origin.
            part.register_forward_hook(lambda _part, _inputs, output: output.clone())

    def _share_router(self, mixture: MixtureOfExperts) -> None:
        """Have ranks sum what the experts return, of each of which they have a part, and the
        gradients of the router."""
        outside = Shard(1) if self._by_tokens else Replicate()
        parallelize_module(mixture, self._mesh, PrepareModuleOutput(
            output_layouts=Partial(), desired_output_layouts=outside))
        mixture.router.weight = nn.Parameter(DTensor.from_local(
            mixture.router.weight.data, self._mesh, [Replicate()], run_check=False))

    def _own_head(self, keys: DTensor) -> torch.Tensor:
        """Return what a rank's queries need of all keys or values, of which each rank computed a
        part; ranks that need the same add up its gradients."""
        assert self._mesh is not None  # noqa: S101  (nothing is divided else)
        every = keys.to_local(grad_placements=[Partial()])
        mine = every.chunk(self._kv_heads, -1)[self._mesh.get_local_rank() // self._copies]
        return mine.contiguous()  # or all of them were kept

    def loss(self) -> AbstractContextManager[object]:
        return loss_parallel() if self._by_words else nullcontext()

    def _embedding(self) -> Styles:
        """By words: a rank looks up those it has, and the results are added."""
        if not self._by_tokens:
            return {"tokens": RowwiseParallel(input_layouts=Replicate())}
        own = {name: PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(0)) for name in (
            "positions", "types")}
        return {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm": SequenceParallel(use_local_output=True), **own}

    def _block(self, block: TransformerBlock) -> Styles:
        """Heads and columns. q, k and v share one gathered input, and add its gradients once."""
        outside = Shard(1) if self._by_tokens else Replicate()
        styles: Styles = {}  # norms of some of the tokens have their parameters everywhere
        for name, first, last in (("attention", ("q", "k", "v"), "o"),
                                  ("mlp", ("gate", "up"), "down")):
            others = (None,) if name == "attention" else ()
            styles[name] = PrepareModuleInput(
                input_layouts=(outside, *others), desired_input_layouts=(Replicate(), *others))
            at, inside, behind = name, block.get_submodule(name), outside
            if isinstance(inside, MixtureOfExperts):
                at, inside, behind = f"{name}.shared", inside.shared, Partial()
            for child in first if inside else ():
                if getattr(inside, child) is not None:
                    styles |= _columns(block, f"{at}.{child}", self._by_columns(child))
            styles |= _rows(block, f"{at}.{last}", behind) if inside else {}
            if name == "attention" and block.attention.q_norm is not None:
                styles |= {f"attention.{each}_norm": SequenceParallel(
                    sequence_dim=1, use_local_output=True) for each in "qk"}  # of a rank's heads
            if self._by_tokens:
                styles[f"{name}_norm"] = SequenceParallel(use_local_output=True)
        return styles

    def _by_columns(self, child: str) -> ParallelStyle:
        """Return how a product is divided: those of fewer heads of keys than ranks below a head,
        too, and what they return is gathered."""
        if self._copies > 1 and child in "kv":
            return ColwiseParallel(output_layouts=Replicate(), use_local_output=False)
        return ColwiseParallel()

    def _head(self, head: nn.Module) -> Styles:
        """By words. BERT's product before the logits is not divided: tokens are gathered first."""
        outside = Shard(1) if self._by_tokens else Replicate()
        logits = ColwiseParallel(
            output_layouts=Shard(-1) if self._by_words else Replicate(),
            use_local_output=not self._by_words)
        if not self._by_tokens:
            return {"logits": logits}
        if head.transform is not None:
            return {"transform": PrepareModuleInput(
                input_layouts=outside, desired_input_layouts=Replicate(), use_local_output=True),
                "logits": logits}
        logits.input_layouts = (outside,)
        return {"norm": SequenceParallel(use_local_output=True), "logits": logits}


def _is_adapted(block: nn.Module, name: str) -> bool:
    return hasattr(block.get_submodule(name), "base_layer")  # as peft calls the frozen product


def _columns(block: nn.Module, name: str, plain: ParallelStyle) -> Styles:
    """Divide a product by outputs; of an adapter B by outputs and A by the rank, for a gather."""
    if not _is_adapted(block, name):
        return {name: plain}
    return {f"{name}.base_layer": ColwiseParallel(),
            f"{name}.lora_A.default": ColwiseParallel(use_local_output=False),
            f"{name}.lora_B.default": ColwiseParallel(input_layouts=Shard(-1))}


def _rows(block: nn.Module, name: str, outside: Placement) -> Styles:
    """Divide a product by inputs; an adapter, too, so that one sum has both."""
    if not _is_adapted(block, name):
        return {name: RowwiseParallel(output_layouts=outside)}
    return {name: PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=outside),
            f"{name}.lora_A.default": RowwiseParallel(
                output_layouts=Shard(-1), use_local_output=False),
            **{f"{name}.{part}": RowwiseParallel(
                output_layouts=Partial(), use_local_output=False)
               for part in ("base_layer", "lora_B.default")}}


class Spreader:
    """All ways at once in which a model, or a stage of one, is spread over the ranks of a grid."""

    def __init__(self, spec: Training, place: Place, grid: base.Grid) -> None:
        self._device = place.device
        self.tokens = OwnTokens(spec, place, grid)
        self.divider = Divider(grid.row("tp"), spec)
        self.sharder = Sharder(grid.row("replicate", "shard"), spec)
        self.experts = SpreadExperts(spec, place, grid)

    def build(self, draft: Model, fill: Fill) -> Model:
        draft = self.tokens.reach_others(draft)
        model = build(draft, self._device, fill, self._divide, self._shard)
        self.experts.route(model)
        return model

    def _divide(self, part: nn.Module) -> None:
        self.experts.divide(part)
        self.divider.divide(part)

    def _shard(self, part: nn.Module) -> None:
        self.experts.shard(part, self.sharder)
        self.sharder.shard(part)


class TensorParallel(WithExperts, Replica):
    """A whole model whose parts are divided, and then spread over replicas if there are several."""

    def build(self) -> Model:
        self.grid = base.parallel_grid(self.spec, self.place)
        self._spreader = Spreader(self.spec, self.place, self.grid)
        self.experts = self._spreader.experts
        return self._spreader.build(self.draft(), self.fill)

    def wrap(self, model: Model) -> nn.Module:
        if self.spec.dp * self.spec.cp > 1:
            self.watch = GroupWatch(model)
        return model

    def make_scaler(self) -> torch.amp.GradScaler:
        return base.AgreedScaler(self.spec.dtype, self.place.device, self.place.group)

    def forward_backward(self, batch: base.Batch, phases: base.PhaseClock) -> torch.Tensor:
        loss = super().forward_backward(self._spreader.tokens.of(batch), phases)
        base.align_gradients(self.plain.parameters())
        phases.end("backward")
        return self._spreader.tokens.mean(loss, phases)

    def arithmetic(self) -> AbstractContextManager[object]:
        return self._spreader.sharder.arithmetic(self.place.device)

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        self._spreader.sharder.synchronize(self.plain, self.exchanges(last))
        return self._spreader.divider.loss()
