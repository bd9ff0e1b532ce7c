"""How a strategy spreads experts over ranks, and what each rank then sends, gets and keeps.

A rank's rows are copies of tokens that travel; its pairs are rows with one of its experts each. The
routing is the same in each block and part of a batch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from hpcbench.kinds.training.plan.model_file import architecture_of
from hpcbench.kinds.training.plan.models import Parameters, shape_of
from hpcbench.kinds.training.plan.workload import OFFLOAD, Training
from hpcbench.operations.loads import BALANCED, FP8, MATRIX, SAME, Load, Routing, route
from hpcbench.operations.models import Experts, LatentAttention

SCALED_BLOCK = 128
"""Values of a row that share a scale where they travel in 8 bits, as in DeepEP."""
_SCALE_BYTES = 4  # fp32


class Spread(NamedTuple):
    """``ep``: ranks that divide the experts; ``dedup``: see `operations.loads.DEDUPS`.

    ``load`` is balanced where the ``router`` decides in each step: all that follows from it is then
    no prediction, but what a balanced load would be.
    ``capacity_factor``: how many of a rank's tokens an expert takes at most, over the mean of all
    (GShard, arXiv:2006.16668, section 2.2); 0: all. As in Megatron-LM, the first ones stay, and
    what is dropped leaves the weights of the others as they are.
    ``in_8_bits``: what goes to experts is e4m3, tokens and in backward gradients of results
    (DeepSeek-V3, arXiv:2412.19437, section 3.3.3); what comes back is in the dtype."""

    ep: int
    load: Load
    dedup: str
    capacity_factor: Fraction
    router: bool
    in_8_bits: bool = False

    def sent_bytes(self, hidden: int, element: int) -> int:
        """Return the bytes of a row on its way to experts; a block that is not full travels whole.
        """
        blocks = -(-hidden // SCALED_BLOCK)
        return blocks * (SCALED_BLOCK + _SCALE_BYTES) if self.in_8_bits else hidden * element


def spread_of(work: Training) -> Spread | None:
    """Return how a training spreads experts; None of a strategy that spreads none."""
    options = dict(work.options)
    if "load" not in options:
        return None
    load = str(options["load"])
    return Spread(int(options["ep"]), Load.from_text(BALANCED if load == ROUTER else load),
                  str(options.get("dedup", "expert")),  # one rank has all: it is no option there
                  Fraction(str(options.get("capacity_factor", "0")).replace(UNLIMITED, "0")),
                  load == ROUTER, options.get("dispatch", SAME) == FP8)


def is_routed(work: Training) -> bool:
    """Return whether the router decides where tokens go, so that nothing of it can be predicted."""
    spread = spread_of(work)
    return spread is not None and spread.router


ROUTER, UNLIMITED = "router", "none"


def load_text(text: str) -> str:
    """Return the one way to write a load, or ROUTER. Raises ValueError."""
    if text == ROUTER:
        return text
    try:
        return Load.from_text(text).text
    except ValueError as error:
        raise ValueError(f"{error}; or {ROUTER}, whose scores decide") from error


def capacity_text(text: str) -> str:
    """Return the one way to write a capacity factor. Raises ValueError."""
    if text == UNLIMITED:
        return text
    if re.fullmatch("[0-9]{1,3}([.][0-9]{1,6})?", text) is None:
        raise ValueError(f"{text} is no capacity factor: write {UNLIMITED}, or a number such as "
                         "1.25")
    if not float(text):
        raise ValueError(f"0 lets no token through: write {UNLIMITED} for no limit")
    return f"{float(text):.6f}".rstrip("0").rstrip(".")


class Share(NamedTuple):
    """What a rank of a group has of a part of a batch: rows it sends and gets, pairs it computes,
    and the pairs of its own tokens."""

    sent: int
    received: int
    pairs: int
    own_pairs: int


class GroupLoad(NamedTuple):
    """What the ranks of a group have, the tokens that each expert takes, and the share of pairs
    that are dropped; None where none can be."""

    shares: tuple[Share, ...]
    of_experts: tuple[int, ...]
    dropped: float | None


def routing_of(work: Training) -> Routing:
    """Return the routing of the tokens of one group's ranks in a part of a batch."""
    return _routing(*_routed(work))


def load_of(work: Training) -> GroupLoad:
    return _load(*_routed(work))


def shares_of(work: Training) -> tuple[Share, ...]:
    """Return the share of each rank of a group."""
    return load_of(work).shares


def capacity_of(work: Training) -> int:
    """Return how many of a rank's tokens an expert takes in a part of a batch; 0: all."""
    return _capacity(*_routed(work))


def _routed(work: Training) -> tuple[Spread, int, Experts]:
    """Return how experts are spread, and a rank's tokens in a part of a batch."""
    spread, experts = spread_of(work), shape_of(work).experts
    assert spread and experts  # noqa: S101  (a training that spreads experts has both)
    return spread, work.batch_size // work.accumulation * work.seq_length, experts


def _routing(spread: Spread, tokens: int, experts: Experts) -> Routing:
    return route(spread.load, spread.ep, tokens, experts.number, experts.per_token)


def _capacity(spread: Spread, tokens: int, experts: Experts) -> int:
    return math.ceil(spread.capacity_factor * tokens * experts.per_token / experts.number)


@lru_cache(maxsize=64)
def _load(spread: Spread, tokens: int, experts: Experts) -> GroupLoad:
    routing, capacity = _routing(spread, tokens, experts), _capacity(spread, tokens, experts)
    if capacity:
        from hpcbench.operations.token_copies import traffic_within  # most plans need no numpy

        traffic, counts = traffic_within(routing, capacity)
    else:
        traffic = {dedup: routing.traffic(dedup) for dedup in {spread.dedup, "expert"}}
        counts = routing.of_experts()
    rows, pairs = traffic[spread.dedup], traffic["expert"]
    shares = tuple(Share(*each) for each in zip(
        rows.sent, rows.received, pairs.received, pairs.sent, strict=True))
    dropped = 1 - sum(counts) / (spread.ep * tokens * experts.per_token) if capacity else None
    return GroupLoad(shares, counts, dropped)


def unfit_experts(work: Training) -> str | None:
    """Return why a training cannot spread the experts of its model, or None."""
    shape, spread = shape_of(work), spread_of(work)
    if spread is None:
        return "only strategy moe trains a model with experts" if shape.experts else None
    if shape.experts is None:
        return f"{work.model} has no experts: name a model that has, or another strategy"
    experts, shards = shape.experts, ranks_of_expert(work)
    extent = math.gcd(experts.inner, shape.hidden)
    others = nearest_ep(spread.ep, [
        ep for ep in range(1, math.gcd(work.dp, experts.number) + 1)
        if work.dp % ep == experts.number % ep == 0 and (ep == 1 or extent % (work.dp // ep) == 0)])
    reasons = (
        (experts.number % spread.ep, f"{experts.number} experts cannot be divided evenly among "
         f"{spread.ep} ranks (ep){others}"),
        (extent % shards,
         f"extents {experts.inner} and {shape.hidden} of experts cannot be divided evenly among "
         f"the {shards} ranks that have the same{others}"),
        (spread.load.name == MATRIX, "load matrix: says which ranks rows go to, not which experts "
         "a token has; primitive ep_dispatch_combine takes it"),
        (work.checkpointing in ("operators", OFFLOAD), f"checkpointing {work.checkpointing}: what "
         "experts keep of it is not planned; take selective or full"),
        (spread.router and not work.trains, f"load {ROUTER}: ranks that compute or hear nothing of "
         "one another do not know where tokens go; give another load"))
    return next((why for holds, why in reasons if holds), None) or spread.load.unfit(
        experts.number, experts.per_token)


def nearest_ep(ep: int, fitting: Sequence[int]) -> str:
    """Return which of those that fit to take, the nearest of less and of more."""
    near = [*[one for one in fitting if one < ep][-1:], *[one for one in fitting if one > ep][:1]]
    return f"; take ep={' or '.join(map(str, near))}" if near else ""


def ranks_of_expert(work: Training) -> int:
    """Return how many ranks share an expert by itself, each a part of its matrices."""
    spread = spread_of(work)
    return work.dp // spread.ep if spread and spread.ep > 1 else 1


_SMALL = 8  # extents of small latents and their heads


def with_small_experts(work: Training, inner: int) -> tuple[tuple[str, Any], ...]:
    """Return `Training.architecture` with small experts, as many, and heads with small latents, if
    the model has such."""
    shape = shape_of(work)
    if (experts := shape.experts) is None:
        return work.architecture
    latent = shape.latent and LatentAttention(
        _SMALL, _SMALL, _SMALL, _SMALL, _SMALL * bool(shape.latent.query_rank))
    return architecture_of(replace(shape, latent=latent, experts=replace(
        experts, inner=inner, shared_inner=inner * bool(experts.shared_inner),
        dense_layers=min(experts.dense_layers, 1))))


def is_of_experts(name: str) -> bool:
    return ".experts." in name


@lru_cache(maxsize=256)
def apart_experts(parameters: Parameters) -> tuple[Parameters, Parameters]:
    """Return the parameters that all ranks share, and those of experts, the extent first in which
    the ranks that have the same experts cut them."""
    return (Parameters(tuple(one for one in parameters.tensors if not is_of_experts(one.name))),
            Parameters(tuple(
                one._replace(extents=(one.extents[1], one.extents[0], *one.extents[2:]))
                for one in parameters.tensors if is_of_experts(one.name))))
