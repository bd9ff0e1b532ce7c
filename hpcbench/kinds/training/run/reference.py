"""The same step in one process, in fp64, how far layouts may be from it, and their fingerprints.

Rounding errors of a sum of K products of random signs grow as sqrt(K) u, relative to the norm
(Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41,
2019). A gradient passes D products. fp32: their errors add up to at most D sqrt(K) u, K the longest
sum of a step. bf16, fp16: products accumulate in fp32 and round operands and result once: sqrt(D)
u. `_MARGIN` is Higham and Mary's lambda: 4 fails for one sum in ten thousand at most; wrong scales
and missing exchanges still fail.

In a ResNet a batch norm with biases of b lets errors grow by sqrt(1 + b^2), and a ReLU adds or
removes a gradient where an error takes a value across 0: a share of E|e| x (the normal density at 0
about b, `NARROW_BIAS`) of each ReLU's elements.

A fingerprint of a parameter is its norm and `PROJECTIONS` projections on random signs: linear, so
that of a difference is the difference, and E <s, e>^2 = |e|^2 for uncorrelated signs (Achlioptas,
Database-friendly random projections, J. Comput. Syst. Sci. 66, 2003). So two runs are compared in
the norm of their difference by a few numbers. The sign of element (i, j) is the product of one of
its row and one of its column: a rank needs to know only where its part begins."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.func import functional_call
from torch.nn import functional as F

from hpcbench.kinds.training.plan import models, workload
from hpcbench.kinds.training.plan.any_model import halved
from hpcbench.kinds.training.plan.experts import is_routed
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.spec import adapters_of, layout_of
from hpcbench.kinds.training.plan.step import step_of
from hpcbench.kinds.training.run.data import SEED, Loader
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.fp8 import in_8_bits, multiplied_in_fp64
from hpcbench.kinds.training.run.models.model import NARROW_BIAS, init_weights, mean_loss
from hpcbench.kinds.training.run.models.transformer import TIED, plain_name
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.moe import part_by_part, route_alone
from hpcbench.operations.data import DTYPES, all_gather_tensor
from hpcbench.operations.place import Place
from hpcbench.operations.token_file import TokenFile
from hpcbench.units import grouped


class Reference:
    """Losses and gradients of the first global batch, in one process, with the weights of the seed.

    Every rank computes it alone, in fp64, so differences are the strategy's. ``gradients`` are of
    the mean of all samples, by ``weights``; a batch norm's statistics are of one micro-batch, so it
    computes in these parts. ``buffers`` are those of each replica then, ``start`` those at first.
    ``scores`` of routers are those of each replica, block and micro-batch.
    """

    def __init__(self, spec: workload.Training, device: torch.device,
                 file: TokenFile | None = None) -> None:
        self._spec = replace(spec, checkpointing="none", compile=False, loss=workload.CROSS_ENTROPY)
        self._model = make_model(self._spec)
        if spec.documents > 1:
            mask = _within(models.document_lengths(spec.seq_length, spec.documents), device)
            for block in self._model.blocks.values():
                block.attention.attend = partial(_masked, mask)
        part_by_part(spec, self._model)
        init_weights(self._model, SEED, device=device)
        self._trained = self.begin(device)
        in_parts = spec.of_images or spec.in_8_bits
        self.start, self.parts = self._buffers(), step_of(spec).parts if in_parts else 1
        loader = Loader(spec, device, file)
        self._losses: list[float] = []
        self.buffers: list[dict[str, torch.Tensor]] = []
        self.scores: list[list[list[torch.Tensor]]] = []
        for replica in range(spec.dp):
            self._model.load_state_dict(self.start, strict=False)
            routers = route_alone(spec, self._model, replica, device)
            self._losses += self._backward(
                loader.batch(0, replica * spec.batch_size, spec.batch_size))
            self.scores.append([router.scores or [] for router in routers])
            self.buffers.append(self._buffers())
        self.gradients = {name: weight.grad.to("cpu", torch.float64, copy=True) / spec.dp
                          for name, weight in self._trained.items()}
        self.weights = {name: weight.detach().to("cpu", copy=True)
                        for name, weight in self._trained.items()}

    def begin(self, device: torch.device) -> dict[str, torch.Tensor]:
        self._model.to(device, torch.float64)
        return dict(self._model.named_parameters())

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._model(inputs)

    def loss(self, first: int, count: int) -> float:
        return sum(self._losses[first:first + count]) / count

    def _backward(self, batch: base.Batch) -> list[float]:
        inputs, targets = batch
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        sample_losses: list[float] = []
        for part, wanted in zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True):
            logits = self.logits(part)
            (mean_loss(logits, wanted) / (self._spec.batch_size / len(part))).backward()
            sample_losses += [float(mean_loss(each[None], one[None])) for each, one in zip(
                logits.detach(), wanted, strict=True)]
        return sample_losses

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.to("cpu", copy=True) for name, buffer in self._model.named_buffers()}

    def updated(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights after a step of the optimizer with these gradients, fp64.

        It is in fp64, too; in bf16 where the states are, since these lose what no bound would miss.
        The first step with states in 8 bits is AdamW's in fp32: they are rounded behind it."""
        small = self._spec.optimizer == workload.IN_8_BITS
        in_bf16 = self._spec.precision == workload.BF16 and not small
        dtype = torch.bfloat16 if in_bf16 else torch.float64
        weights = {name: weight.to(dtype, copy=True).requires_grad_()
                   for name, weight in self.weights.items()}
        name = "adamw" if small else self._spec.optimizer
        optimizer = base.make_optimizer(name, list(weights.values()))
        for name, weight in weights.items():
            weight.grad = gradients[name].to(dtype)
        optimizer.step()
        return {name: weight.detach().to(torch.float64) for name, weight in weights.items()}


class ScaledReference(Reference):
    """The reference of products in 8 bits: the same arithmetic in one process.

    A bound by roundings to 2 bits would miss a lost exchange. So it rounds the same numbers, which
    it computes as the strategy does: micro-batch by micro-batch, in bf16. Only the products are
    others, of what the 8 bits stand for, in fp64: torch's are not taken for granted. Last bits may
    then differ, and some numbers be rounded to their neighbours (`_UNIT_OF_8_BITS`)."""

    def begin(self, device: torch.device) -> dict[str, torch.Tensor]:
        in_8_bits(self._spec, self._model, multiplied_in_fp64)
        self._model.to(device)
        return dict(self._model.named_parameters())

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        if layout_of(self._spec).groups is None:
            with base.autocast(self._spec, inputs.device):
                return self._model(inputs)
        dtype = DTYPES[self._spec.dtype]  # fully_shard casts parameters, before they are used
        return functional_call(self._model, {
            name: weight.to(dtype) for name, weight in self._trained.items()}, (inputs,))


def reference_of(
    spec: workload.Training, device: torch.device, file: TokenFile | None = None,
) -> Reference:
    kind = (LowRankReference if adapters_of(spec) else
            ScaledReference if spec.in_8_bits else Reference)
    return kind(spec, in_fp64(device), file)


class LowRankReference(Reference):
    """The reference of adapters: each product is with W + (alpha / rank) B A, written out.

    W is as it is held: rounded, or what its 4 bits stand for. Neither peft nor unpacking is taken
    for granted."""

    def begin(self, device: torch.device) -> dict[str, torch.Tensor]:
        adapters = adapters_of(self._spec)
        assert adapters is not None  # noqa: S101  (the strategy has a rank)
        self._scale = int(self._spec.option("alpha")) / adapters.rank
        self._frozen = {
            name: self._stored(adapters, name, weight.detach().to(device))
            for name, weight in self._model.named_parameters()}
        self._model.to(device, torch.float64)
        products = [models.Tensor(name, tuple(weight.shape))
                    for name, weight in self._model.named_parameters() if adapters.has(name)]
        self._targets = {one.name: (*models.low_rank_tensors(one, adapters.rank),
                                    *models.magnitudes(one, adapters)) for one in products}
        return {part.name: self._model.initial(part.name, part.extents, SEED, device).to(
                    device, torch.float64).requires_grad_()
                for parts in self._targets.values() for part in parts}

    def _stored(self, adapters: models.Adapters, name: str, weight: torch.Tensor) -> torch.Tensor:
        if models.is_narrow(models.shape_of(self._spec), name):
            weight = weight.to(DTYPES[self._spec.dtype])
        if adapters.packs(name):
            from hpcbench.kinds.training.run.models.nf4 import quantised, unpacked

            return unpacked(*quantised(weight))
        return weight.to(torch.float64)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        weights = self._frozen | {name: self._adapted(name, parts)
                                  for name, parts in self._targets.items()}
        return functional_call(self._model, weights, (inputs,))

    def _adapted(self, name: str, parts: Sequence[models.Tensor]) -> torch.Tensor:
        a, b, *magnitude = (self._trained[part.name] for part in parts)
        held = self._frozen[name]
        weight = (held.t() if models.of_transposed(name) else held) + self._scale * b @ a
        if magnitude:  # no gradient passes the norm (DoRA, section 4.3)
            weight = magnitude[0][:, None] * weight / weight.detach().norm(dim=1, keepdim=True)
        return weight.t() if models.of_transposed(name) else weight


def _within(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return where two tokens are of one document, (tokens, tokens)."""
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(device)
    return document[:, None] == document


def _masked(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
            causal: bool, **how: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.tril() if causal else mask, enable_gqa=q.shape[1] != k.shape[1],
        **how)


def in_fp64(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "mps" else device


UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}
"""Unit roundoff: half the distance from 1 to the next number."""
_UNIT_OF_8_BITS = 2.0**-3
"""The same of e5m2, the coarsest. Where both sides round to 8 bits, a difference of u in an operand
takes it to another number, 2 v away, with a probability of u / 2 v: an error of sqrt(u v) on
average, u / 2 being that of differences. Both operands of each product have it, if all differ."""
_UNIT_OF_E4M3 = 2.0**-4
_MARGIN = 4.0
_BLOCK_PRODUCTS = 6  # one after the other in a block: q k and v, scores, values, output, up, down
_OF_LATENTS = 1  # more: latents before q k and v
_BLOCK_NORMED = 6
"""One after the other in a block of a ResNet: three convolutions, each with a norm."""
_STEM_AND_HEAD = 3
_SHIFT = math.sqrt(1 + NARROW_BIAS**2)
_AT_ZERO = math.exp(-NARROW_BIAS**2 / 2) / math.sqrt(2 * math.pi)
_MEAN_ERROR = math.sqrt(2 / math.pi)
UPDATE_ROUNDINGS = 16
"""For one element in an optimizer's step: AdamW's has 14 operations, none of which cancels."""
LEAST = 0.01
"""Part of a parameter's share of the norm of all gradients; only those of keys' biases are smaller.
They are exactly 0, and computed ones are rounding errors (`plan.workload.bias_scale`)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How large the norm of a difference may be: ``relative`` x norm + ``floor`` x sqrt(n)."""

    relative: float
    floor: float = 0.0


def arithmetic_bound(spec: workload.Training) -> float:
    if spec.of_images:
        return _MARGIN * _image_error(spec, 2 * (_BLOCK_NORMED * spec.layers + _STEM_AND_HEAD))
    of_block = _BLOCK_PRODUCTS + (_OF_LATENTS if shape_of(spec).latent else 0)
    depth, unit = 2 * (of_block * spec.layers + 1), UNIT[spec.dtype]
    spread = layout_of(spec).experts
    longest = max(spec.hidden, spec.inner, spec.vocab, spec.tokens or 0)
    error = _MARGIN * unit * (
        depth * math.sqrt(longest) if spec.dtype == "fp32" else math.sqrt(depth))
    turned = math.sqrt(2 * depth * unit * _UNIT_OF_8_BITS) * spec.in_8_bits
    if spread and spread.in_8_bits:  # in each block tokens, and gradients of what experts return
        turned += math.sqrt(2 * spec.layers * error * _UNIT_OF_E4M3)
    return error + turned


def gradient_bound(spec: workload.Training, exchange: base.GradientExchange) -> Bound:
    """Return the bound of gradients: arithmetic, and dp roundings in the exchange's dtype.

    Gradients that are held in bf16 are rounded for each part that is added, of all ranks."""
    relative = arithmetic_bound(spec)
    relative += spec.is_narrow * (spec.dp * spec.cp * spec.tp + step_of(spec).parts) * UNIT["bf16"]
    if spec.of_images:  # the share of a gradient that other ReLUs may pass
        error = _MEAN_ERROR * _image_error(spec, _BLOCK_NORMED * spec.layers + _STEM_AND_HEAD)
        relative += math.sqrt(_MARGIN * (3 * spec.layers + 1) * _AT_ZERO * error)
    return Bound(relative + spec.dp * exchange.unit, spec.dp * exchange.floor)


def held_bound(spec: workload.Training) -> float:
    """Return the relative error of holding updated weights: one rounding of those in bf16, and two,
    to a neighbour, where the whole step was in bf16, on this device and in one process."""
    return spec.is_narrow * UNIT["bf16"] * (2 - spec.has_master)


def _image_error(spec: workload.Training, depth: int) -> float:
    """Return the relative error behind so many operations of a ResNet, without a margin."""
    if spec.dtype == "fp32":
        longest = spec.global_batch * halved(spec.image_size)**2  # of a weight's gradient
        return _SHIFT * depth * math.sqrt(longest) * UNIT["fp32"]
    return _SHIFT * math.sqrt(depth) * UNIT[spec.dtype]


PROJECTIONS = 8
"""The mean of so many squares is above 4 times the square of the norm once in 10 000 differences:
that of chi squared with 8 degrees of freedom (`derive.fingerprints.SKETCH`)."""
_PLACE = 4  # columns before the sums of a part: first row, rows, first column, columns
_CHUNK = 1 << 16  # elements that are made fp64 at a time, which stay in a core's cache
_DIGITS = 9
Named = Iterable[tuple[str, torch.Tensor, torch.Tensor]]
"""A parameter's name, the parameter, which shows where the rank's part is, and the value."""


class Fingerprints:
    """Fingerprints of a strategy around its first step. All ranks call each method."""

    def __init__(self, strategy: base.Strategy) -> None:
        self._strategy = strategy
        self._names = _names(strategy)
        self._tables = {workload.WEIGHTS: self._table((name, one, one) for name,
                                                      one in strategy.trained())}

    def record_gradients(self) -> None:
        self._tables[workload.GRADIENTS] = self._table(_gradients(self._strategy))

    def record_updates(self) -> None:
        after = self._table((name, one, one) for name, one in self._strategy.trained())
        after[:, _PLACE] = 0  # the norm of a difference is not that of norms: it is not known
        after[:, _PLACE + 1:] -= self._tables[workload.WEIGHTS][:, _PLACE + 1:]
        self._tables[workload.UPDATES] = after

    def answer(self) -> dict[str, Any]:
        """Return fingerprints of whole parameters, by kind and name (a norm, then projections), and
        bounds.

        Copies that differ have two: the first, and the farthest from it."""
        strategy = self._strategy
        spec, bound = strategy.spec, gradient_bound(strategy.spec, strategy.exchange)
        answer: dict[str, Any] = {
            "hidden": spec.hidden, "relative": bound.relative, "floor": bound.floor,
            "least": LEAST, "optimizer": spec.optimizer,
            "rate": base.RECIPES[spec.optimizer].settings["lr"], "elements": {}}
        for kind, table in self._tables.items():
            parts = _gathered(table, strategy.place)
            answer[kind] = {}
            for name, rows in grouped(  # a tied one is there twice, by one name
                    (self._plain(name), parts[:, row])
                    for row, name in enumerate(self._names)).items():
                copies, elements = whole_copies(torch.cat(rows))
                if copies:
                    answer[kind][name] = copies
                    answer["elements"][name] = elements
        return answer

    def _table(self, items: Named) -> torch.Tensor:
        """Return this rank's sums (parameter, `_PLACE` + 1 + `PROJECTIONS`), fp64; 0 of none."""
        table = torch.zeros((len(self._names), _PLACE + 1 + PROJECTIONS), dtype=torch.float64)
        rows = {name: row for row, name in enumerate(self._names)}
        for name, parameter, value in items:
            if name in rows:
                table[rows[name]] = sums(self._plain(name), parameter, value)
        return table

    def _plain(self, name: str) -> str:
        return plain_name(shape_of(self._strategy.spec), name)


def sums(name: str, parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return where a rank's part of a parameter is, its sum of squares and its projections."""
    own, extents, first = local(value.detach()), tuple(parameter.shape), (0,) * parameter.dim()
    if isinstance(parameter, DTensor):
        _, first = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements)
    found = torch.zeros(_PLACE + 1 + PROJECTIONS, dtype=torch.float64)
    if not own.numel():
        return found
    rows, columns, at = len(own), own[0].numel(), int(first[0])
    across = torch.arange(parameter[0].numel()).view(extents[1:])
    for dim, (begin, count) in enumerate(zip(first[1:], own.shape[1:], strict=True)):
        across = across.narrow(dim, int(begin), count)
    here = across.flatten()  # the columns that the rank has
    found[:_PLACE] = torch.tensor([at, rows, int(here[0]), columns])
    device = in_fp64(own.device)
    of_rows = _signs(name, 0, extents[0])[at:at + rows].to(device)
    of_columns = _signs(name, 1, parameter[0].numel())[here].to(device)
    found[_PLACE:] = _sums(own.reshape(rows, columns), of_rows, of_columns).cpu()
    return found


def _sums(own: torch.Tensor, of_rows: torch.Tensor, of_columns: torch.Tensor) -> torch.Tensor:
    sums_of_rows = torch.zeros(1 + PROJECTIONS, dtype=torch.float64, device=of_rows.device)
    height = max(1, _CHUNK // own.shape[1])
    for part, signs in zip(own.split(height), of_rows.split(height), strict=True):
        wide = part.to(of_rows.device, torch.float64)
        sums_of_rows[0] += wide.square().sum()
        sums_of_rows[1:] += ((wide @ of_columns) * signs).sum(0)
    return sums_of_rows


def whole_copies(rows: torch.Tensor) -> tuple[list[list[float]], int]:
    """Return the fingerprints of a parameter from the rows (rank, ...) of its parts, and its size.

    Ranks with the same part have copies of it. Parts that one rank only has are in every copy."""
    parts = list(grouped((tuple(row[:_PLACE].tolist()), row[_PLACE:])
                         for row in rows if row[1] > 0).items())
    if not parts:
        return [], 0
    most = max(len(same) for _, same in parts)
    copies = torch.stack([sum(same[min(copy, len(same) - 1)] for _, same in parts)
                          for copy in range(most)])
    elements = int(sum(place[1] * place[3] for place, _ in parts))
    farthest = int((copies - copies[0]).square().sum(1).argmax())
    copied = [_rounded(copies[copy]) for copy in dict.fromkeys((0, farthest))]
    return copied[:1] if copied[0] == copied[-1] else copied, elements


def _rounded(copy: torch.Tensor) -> list[float]:
    norm = max(float(copy[0]), 0.0) ** 0.5
    return [float(f"{value:.{_DIGITS}g}") for value in (norm, *copy[1:].tolist())]


def _gathered(table: torch.Tensor, place: Place) -> torch.Tensor:
    """Return the tables of all ranks (rank, parameter, ...)."""
    if place.world_size == 1:
        return table[None]
    own = table.to(in_fp64(place.device)).flatten()
    gathered = own.new_empty(place.world_size * own.numel())
    all_gather_tensor(gathered, own, group=place.group)
    return gathered.cpu().view(place.world_size, *table.shape)


def _signs(name: str, dimension: int, extent: int) -> torch.Tensor:
    """Return the signs (extent, PROJECTIONS) of the rows or columns of a parameter."""
    digest = hashlib.sha256(f"{SEED} signs {name} {dimension}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    drawn = torch.randint(0, 2, (extent, PROJECTIONS), generator=generator)
    return 2.0 * drawn.to(torch.float64) - 1.0


def _names(strategy: base.Strategy) -> Sequence[str]:
    """Return the names of all that is trained, in one order; also of a last stage's tied weight."""
    if adapters_of(strategy.spec):
        return [name for name, _ in strategy.trained()]
    with torch.device("meta"):
        names = [name for name, _ in make_model(strategy.spec).named_parameters()]
    return names if strategy.spec.pp == 1 or TIED[0] in names else [*names, TIED[0]]


def _gradients(strategy: base.Strategy) -> Named:
    scale = strategy.scaler.get_scale()
    return ((name, parameter, local(parameter.grad) / scale if scale != 1 else parameter.grad)
            for name, parameter in strategy.trained() if parameter.grad is not None)


def why_no_fingerprints(strategy: base.Strategy) -> str | None:
    if is_routed(strategy.spec):
        return "rounding decides between experts of nearly equal scores"
    if strategy.spec.of_images:
        return "rounding decides which values its ReLUs cut"
    if strategy.spec.precision != workload.MIXED:
        return "their bounds are those of fp32 weights"
    if strategy.exchange.projects:
        return "its exchange replaces gradients by projections"
    return None
