"""Parity before speed: a strategy must compute what a single process computes.

It is tried on the model itself, or on a small one of the same kind where it is large; then also on
the model in a short step, where that is affordable."""

from __future__ import annotations

import math
import resource
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import psutil
import torch
import torch.distributed as dist
from torch import nn

from hpcbench.backends.devices import free_bytes
from hpcbench.kinds.training.plan import context, planner
from hpcbench.kinds.training.plan.any_model import RESNETS, resnet_of
from hpcbench.kinds.training.plan.build_workload import counted, why_not
from hpcbench.kinds.training.plan.experts import is_routed, ranks_of_expert, with_small_experts
from hpcbench.kinds.training.plan.models import NF4_BLOCK
from hpcbench.kinds.training.plan.spec import adapters_of, pipelining, strategy
from hpcbench.kinds.training.plan.step import is_dynamic, step_of, uneven_shares
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training, bias_scale, weight_beside
from hpcbench.kinds.training.run import reference as references
from hpcbench.kinds.training.run.data import Loader
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.model import MOMENTUM
from hpcbench.kinds.training.run.strategies.base import GradientExchange, Strategy, phase_clock
from hpcbench.measurement.process import KernelFiles, granted_cores
from hpcbench.operations.place import Place
from hpcbench.operations.token_file import TokenFile
from hpcbench.units import digits, round_bytes

_HEAD_DIM = 8
_TOKENS = 16
_VOCAB = 128
_CLASSES = 128
_WIDTH = 8
_VALUES = 16
"""Values of a channel that each batch norm of a small model has at least: statistics of very few
are noise."""
_HALVINGS = 32  # pixels of an image for each behind the last block


def parity_training(spec: Training) -> Training:
    """Return the training that parity is tried on, ``spec`` itself if it is small enough."""
    if not spec.of_images:
        assert spec.tokens is not None  # noqa: S101  (it has no images)
        return spec if planner.is_compared_whole(spec.parameters,
                                                 spec.tokens) else small_training(spec)
    small = _small_images(spec)  # a wide one's ReLUs cut half of all values
    fits = (spec.classes <= _CLASSES and resnet_of(spec).is_narrow and spec.layers == small.layers
            and small.image_size <= spec.image_size <= 2 * small.image_size)
    return spec if fits else counted(small)


def small_training(spec: Training) -> Training:
    """Return a training that takes the same steps on a small model of the same kind.

    The layout, options, batch and accumulation are the same; the layers are the fewest that the
    strategy takes, and leave as many over where stages divide them."""
    if spec.of_images:
        return counted(_small_images(spec))
    parts = context.head_parts(spec)
    sharing = max(1, spec.tp // spec.kv_heads)  # ranks that have a head of keys together
    kv_heads = parts // sharing * min(2, max(1, spec.kv_heads // parts))
    heads = kv_heads * min(max(2, sharing), spec.heads // spec.kv_heads)
    adapters = adapters_of(spec)
    of_head = 2 * _HEAD_DIM if spec.in_8_bits else _HEAD_DIM
    hidden = NF4_BLOCK if adapters and adapters.packed else math.lcm(of_head, sharing) * heads
    hidden = math.lcm(hidden, ranks_of_expert(spec))
    small = replace(
        spec, data=SYNTHETIC, changed=True, hidden=hidden, heads=heads, kv_heads=kv_heads,
        inner=2 * hidden, vocab=min(spec.vocab, _VOCAB * spec.tp),
        architecture=with_small_experts(spec, 2 * hidden),
        seq_length=_few_tokens(spec, _TOKENS), documents=_few_documents(spec, _TOKENS))
    stages = spec.pp * pipelined.stages_per_rank if (pipelined := pipelining(spec)) else 1
    return counted(_shallow(small, least=max(2 * spec.pp, stages) + spec.layers % stages))


def _few_tokens(spec: Training, least: int) -> int:
    unit = spec.tp * context.token_parts(spec)
    return min(spec.seq_length, unit * -(-least // unit))


def _few_documents(spec: Training, least: int) -> int:
    return min(spec.documents, _few_tokens(spec, least) // 2) if spec.documents > 1 else 1


def small_model_text(spec: Training) -> str:
    layers = "1 layer" if spec.layers == 1 else f"{spec.layers} layers"
    if spec.of_images:
        return f"a small model of {layers}, width {spec.width}, images of {spec.image_size} pixels"
    return (f"a small model of {layers}, hidden {spec.hidden}, {spec.heads} heads, "
            f"{spec.seq_length} tokens")


def _small_images(spec: Training) -> Training:
    pixels = math.isqrt(-(-_VALUES // step_of(spec).samples) - 1) + 1
    return _shallow(replace(spec, changed=True, width=min(spec.width, _WIDTH),
                            classes=min(spec.classes, _CLASSES), image_size=_HALVINGS * pixels),
                    least=len(RESNETS[spec.model].blocks))


def _shallow(small: Training, least: int) -> Training:
    """Return the training with the fewest layers that its strategy takes, from ``least`` on."""
    known, layers = strategy(small.strategy), least
    while known and layers < small.layers:
        if why_not(shallow := replace(small, layers=layers), known) is None:
            return shallow
        layers *= 2
    return small


BYTES = 96
"""For a parameter, on each rank. In fp64 the reference has weight and gradient, a copy of both, and
for the step of the optimizer those and two states; the strategy has up to 32 in fp32."""


def short_step(spec: Training) -> Training:
    """Return the same model and layout with a step of few tokens and samples, not compiled."""
    short = counted(replace(
        spec, data=SYNTHETIC, changed=True, compile=False,
        seq_length=_few_tokens(spec, planner.SHORT_TOKENS),
        documents=_few_documents(spec, planner.SHORT_TOKENS)))
    known = strategy(spec.strategy)
    if known is None or is_dynamic(spec):
        return short
    for size in range(spec.accumulation, spec.batch_size, spec.accumulation):
        fewer = replace(short, batch_size=size)
        if spec.batch_size % size == 0 and why_not(fewer, known) is None:
            return fewer
    return short


def why_not_comparable(short: Training, place: Place) -> str | None:
    """Return why the ranks cannot compare a model itself, or None. All ranks call it, and agree."""
    if short.of_images:
        return "rounding decides which values its ReLUs cut"
    assert short.tokens is not None  # noqa: S101  (it has no images)
    per_core = max(1.0, place.world_size / granted_cores(KernelFiles()))  # as if on this node
    expected_s = per_core * planner.comparison_s(short.parameters, short.tokens, place.device.type)
    seconds = _agreed(place, int(expected_s), dist.ReduceOp.MAX)
    if seconds > planner.MOST_S:
        return f"it is expected to take {seconds} s on each rank, more than {planner.MOST_S:g} s"
    needed, free = BYTES * short.parameters, _least_free(place)
    if needed > free:
        return (f"it takes {round_bytes(needed)} on each rank, and a rank has "
                f"{round_bytes(max(free, 0))}")
    return None


def _least_free(place: Place) -> int:
    """Return half of what the rank with the fewest bytes free has, as if all were on one node."""
    free = psutil.virtual_memory().available // place.world_size
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    used = KernelFiles().process_bytes("VmData")
    if limit != resource.RLIM_INFINITY and used is not None:
        free = min(free, limit - used)
    if place.device.type == "cuda":
        free = min(free, free_bytes(place.device))
    return _agreed(place, free // 2, dist.ReduceOp.MIN)


def _agreed(place: Place, value: int, how: dist.ReduceOp.RedOpType) -> int:
    found = torch.tensor([value], dtype=torch.int64, device=place.device)
    if place.world_size > 1 and place.group is not None:
        dist.all_reduce(found, how, group=place.group)
    return int(found)


Tensors = Mapping[str, torch.Tensor]
Make = Callable[[Training, Place], Strategy]
_NOT_FINITE = ("nan", "inf", "-inf")
_LEAST_OF_IMAGES = 1.0
"""For a ResNet. A batch norm does not see what is added to a whole channel before it, so gradients
of the biases of the norm before it are the few elements that a ReLU has cut, or exactly 0."""


@dataclass(frozen=True, slots=True)
class Disparity:
    """A difference from a single process: how many of how many, and the first."""

    n_wrong: int
    n_compared: int
    what: str
    first: str
    got: str
    expected: str

    @property
    def words(self) -> str:
        if self.what == "losses" and self.got in _NOT_FINITE:
            return f"the loss is {self.got}: the training diverged, or a step is wrong"
        return (f"{self.n_wrong} of {self.n_compared} {self.what} are not those of a single "
                f"process, first {self.first}: got {self.got}, expected {self.expected}")


@dataclass(frozen=True, slots=True)
class Parity:
    """The result of the comparison on this rank.

    ``on``: the compared models. ``share``: the largest error over what is allowed, of ``worst``
    (kind, parameter, error, allowed). ``checksum``: of this rank's weights after the step, by whose
    bits two comparisons differ where both are within what is allowed. ``loss``: that of the first
    step and its allowed error; None if unknown."""

    on: str
    share: float
    wrong: Disparity | None
    loss: tuple[float, float] | None = None
    worst: tuple[str, str, float, float] | None = None
    checksum: str = ""

    def loss_wrong(self, loss: float) -> Disparity | None:
        if self.loss is None:
            return None
        return _disparity("losses of the first step", [_loss(loss, *self.loss)])


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One comparison: the error, what is allowed, and both values in words."""

    name: str
    error: float
    allowed: float
    got: str
    expected: str

    @property
    def share(self) -> float:
        """Return the error over the allowed one; infinity if the error is no finite number."""
        if not math.isfinite(self.error):
            return math.inf
        return self.error / self.allowed if self.error else 0.0


def parity(spec: Training, place: Place, make: Make, file: TokenFile | None = None) -> Parity:
    """Compare one step of a fresh strategy with the reference, outside of all time. All ranks call
    it.

    Compared are the replica's loss, all gradients, running statistics, and the weights after a step
    of the optimizer with the strategy's own gradients; the last comparison has unlike shares where
    replicas may get such."""
    work = parity_training(spec)
    if work is spec:
        return _compared(spec, place, make, "the model", file, is_own=True)
    small = _compared(work, place, make, small_model_text(work))
    short = short_step(spec)
    if why := why_not_comparable(short, place):
        return replace(small, on=f"{small.on}; the timed model is not compared with one process, "
                       f"because {why}")
    own = _compared(short, place, make, f"the timed model ({short.parameters / 1e6:.4g} M "
                    f"parameters) in a step of {short.global_batch} x {short.seq_length} tokens",
                    file)
    worse = own if own.share > small.share else small
    return replace(worse, on=f"{small.on}; {own.on}", wrong=small.wrong or own.wrong,
                   checksum=small.checksum + own.checksum)


def _compared(
    work: Training, place: Place, make: Make, on: str, file: TokenFile | None = None, *,
    is_own: bool = False,
) -> Parity:
    reference = references.reference_of(work, place.device, file)
    with closing(make(work, place)) as strategy:
        worst, wrong, loss, where = 0.0, None, None, None
        if strategy.holds_loss and is_own and not is_routed(work):
            expected = reference.loss(*strategy.share)
            loss = expected, references.arithmetic_bound(work) * abs(expected)
        for what, comparisons in _comparisons(work, strategy, reference, file):
            most = max(comparisons, key=lambda item: item.share)
            if where is None or most.share > worst:
                worst, where = most.share, (what, most.name, most.error, most.allowed)
            wrong = wrong or _disparity(what, comparisons)
        bits = checksum(strategy.modules())
    return Parity(on, worst, wrong, loss, where, f"{bits:08x}")


def checksum(modules: Iterable[nn.Module]) -> int:
    """Return a checksum of the bits of this rank's parameters."""
    crc = 0
    for module in modules:
        for parameter in module.parameters():
            data = local(parameter.detach()).to("cpu").contiguous().view(-1).view(torch.uint8)
            crc = zlib.crc32(data.numpy(), crc)
    return crc


def _comparisons(
    work: Training, strategy: Strategy, reference: references.Reference, file: TokenFile | None,
) -> Iterator[tuple[str, list[_Comparison]]]:
    device = strategy.place.device
    phases = phase_clock(device)
    loader = Loader(work, device, file)
    frozen, before = strategy.frozen(), strategy.full_weights() if adapters_of(work) else {}
    got: dict[str, torch.Tensor] = {}
    strategy.follow(reference.scores[strategy.replica])
    for call in range(strategy.warmup_calls + 1):
        if call == strategy.warmup_calls and is_dynamic(work):
            strategy.divide(uneven_shares(work))
        strategy.discard()
        phases.begin()
        loss = strategy.forward_backward(loader.batch(0, *strategy.share), phases)
        if strategy.holds_loss:
            expected = reference.loss(*strategy.share)
            yield "losses", [_loss(float(loss), expected,
                                   references.arithmetic_bound(work) * abs(expected))]
        if strays := [_Comparison(name, off, references.arithmetic_bound(work), digits(off, 2), "0")
                      for name, off in strategy.strays()]:
            yield "scores of chosen experts below the best", strays
        if call == 0 and work.of_images:
            yield "running statistics", list(_statistics(work, strategy, reference))
        got = strategy.full_gradients()
        # those that project do not until the pattern is stable
        early = strategy.exchange.projects and call < strategy.warmup_calls
        yield "gradients", list(_gradients(
            work, GradientExchange() if early else strategy.exchange, got, reference.gradients))
    strategy.update(phases)
    weights = strategy.full_weights()
    if got.keys() == reference.gradients.keys():
        yield "updated weights", list(_weights(
            weights, reference.weights, reference.updated(got), references.held_bound(work)))
    if adapters_of(work):
        # is there something to learn: a chain of packed weights may give no gradient
        norm = math.sqrt(sum(float(item.norm()) ** 2 for item in got.values()))
        yield "norms of all gradients of adapters", [_Comparison(
            "norm", 0.0 if norm > 0 else math.inf, 1.0, digits(norm, 6), "more than 0")]
        yield "adapters after a step", list(_kept(before, weights, same=False))
        yield "frozen weights after a step", list(_kept(frozen, strategy.frozen(), same=True))


def _loss(got: float, expected: float, allowed: float) -> _Comparison:
    return _Comparison("loss", abs(got - expected), allowed, digits(got, 8), digits(expected, 8))


def _gradients(
    work: Training, exchange: GradientExchange, got: Tensors, expected: Tensors,
) -> Iterator[_Comparison]:
    """Compare every gradient with the reference's, in the norm.

    Errors are relative to the parameter's gradient, but at least to `LEAST` of its share of all, or
    to a bias's scale if it did not cancel."""
    bound = references.gradient_bound(work, exchange)
    compare = _projected if exchange.projects else _equal
    least = _LEAST_OF_IMAGES if work.of_images else references.LEAST
    norms = {name: float(item.norm()) for name, item in expected.items()}
    whole = math.sqrt(sum(norm ** 2 for norm in norms.values()))
    count = sum(item.numel() for item in expected.values())
    for name, theirs in expected.items():
        share = whole * math.sqrt(theirs.numel() / count)
        norm = max(norms[name], least * share)
        if (weight := weight_beside(name)) in norms:
            norm = max(norm, bias_scale(norms[weight], expected[weight].numel(), theirs.numel()))
        yield _misfit(name, got, theirs) or compare(name, got[name], theirs, bound, norm)
    for name in got.keys() - expected.keys():
        yield _Comparison(name, math.inf, 1.0, "a gradient", "no such parameter")


def _statistics(work: Training, strategy: Strategy,
                reference: references.Reference) -> Iterator[_Comparison]:
    """Compare running statistics, relative to what came in since the start."""
    expected, start = reference.buffers[strategy.replica], reference.start
    got = strategy.buffers()
    for name in got:
        theirs = expected[name].to(torch.float64)
        kept = (1 - MOMENTUM) ** reference.parts if theirs.dim() else 0
        came = theirs - kept * start[name]
        yield _misfit(name, got, theirs) or _equal(
            name, got[name], theirs, references.Bound(references.arithmetic_bound(work)),
            float(came.norm()))


def _equal(
    name: str, got: torch.Tensor, expected: torch.Tensor, bound: references.Bound, norm: float,
) -> _Comparison:
    ours = got.to(torch.float64)
    allowed = bound.relative * norm + bound.floor * math.sqrt(expected.numel())
    error = float((ours - expected).norm())
    return _Comparison(
        name, error, allowed,
        f"norm {digits(float(ours.norm()), 6)}, off by {digits(error, 2)}",
        f"norm {digits(float(expected.norm()), 6)}, off by {digits(allowed, 2)} at most")


def _projected(
    name: str, got: torch.Tensor, expected: torch.Tensor, bound: references.Bound, norm: float,
) -> _Comparison:
    """Compare a gradient p that may be a projection of g: then <p, g> = <p, p>, and p is not 0.

    PowerSGD's first step is P P^T G, P orthonormal (Vogels et al., arXiv:1905.13727, 2019,
    algorithm 1)."""
    ours = got.to(torch.float64)
    product, square = float((ours * expected).sum()), float((ours * ours).sum())
    error = abs(product - square) if square else math.inf
    return _Comparison(name, error, bound.relative * norm * norm, f"<p, p> = {digits(square, 6)}",
                       f"<p, g> = {digits(product, 6)} of a projection p of the gradient g")


def _weights(
    got: Tensors, before: Tensors, expected: Tensors, held: float,
) -> Iterator[_Comparison]:
    """Compare updated weights, each by the roundings of the optimizer in fp32.

    The error is what holding a weight, a relative error of up to ``held``, does not explain: in
    bf16 some weight of many is always near that, right or wrong."""
    for name, theirs in expected.items():
        if misfit := _misfit(name, got, theirs):
            yield misfit
            continue
        errors = ((got[name].to(torch.float64) - theirs).abs() - held * theirs.abs()).clamp_min(0)
        allowed = references.UPDATE_ROUNDINGS * references.UNIT["fp32"] * (
            theirs.abs() + before[name].abs() + (theirs - before[name]).abs())
        at = int((errors / allowed.clamp_min(1e-300)).argmax())
        yield _Comparison(name, float(errors.flatten()[at]), float(allowed.flatten()[at]),
                          f"{digits(float(got[name].flatten()[at]), 9)} (element {at})",
                          digits(float(theirs.flatten()[at]), 9))


def _kept(before: Tensors, after: Tensors, *, same: bool) -> Iterator[_Comparison]:
    """Check that weights are the same to the last bit after a step, or that each is another."""
    labels = ("others", "the same") if same else ("the same", "others")
    for name, weight in before.items():
        is_kept = name in after and torch.equal(weight, after[name])
        yield _Comparison(name, 0.0 if is_kept == same else math.inf, 1.0, *labels)
    if same and not before:
        yield _Comparison("weights", math.inf, 1.0, "none", "those of the model")


def _misfit(name: str, got: Tensors, expected: torch.Tensor) -> _Comparison | None:
    if name in got and got[name].shape == expected.shape:
        return None
    shape = f"shape {tuple(got[name].shape)}" if name in got else "none"
    return _Comparison(name, math.inf, 1.0, shape, f"shape {tuple(expected.shape)}")


def _disparity(what: str, comparisons: list[_Comparison]) -> Disparity | None:
    wrong = [item for item in comparisons if not item.share <= 1]
    if not wrong:
        return None
    first = wrong[0]
    return Disparity(len(wrong), len(comparisons), what, first.name, first.got, first.expected)
