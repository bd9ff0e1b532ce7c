"""How a strategy spreads experts over ranks, and what each rank then sends, gets and keeps.

A rank's rows are copies of tokens that travel; its pairs are rows with one of its experts each. The
routing is the same in each block and part of a batch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcbench.kinds.training.plan.model_file import architecture_of
from hpcbench.kinds.training.plan.models import ATTENTION, Parameters, shape_of
from hpcbench.kinds.training.plan.spec import Spread, layout_of, nearest, parts_of
from hpcbench.kinds.training.plan.workload import OFFLOAD, Training
from hpcbench.operations.loads import (
    BALANCED,
    DEDUPS,
    FORMS,
    FP8,
    MATRIX,
    SAME,
    Load,
    Routing,
    route,
)
from hpcbench.operations.models import Experts, LatentAttention
from hpcbench.plan.points import Option, Values


def spread_of(work: Training) -> Spread | None:
    """Return how a training with all options of experts spreads them; None of a model without."""
    if not shape_of(work).experts:
        return None
    ep, load = int(work.option("ep")), str(work.option("load"))
    return Spread(ep, Load.from_text(BALANCED if load == ROUTER else load),
                  str(work.option("dedup")) if ep > 1 else "expert",  # one rank has all
                  Fraction(str(work.option("capacity_factor")).replace(UNLIMITED, "0")),
                  load == ROUTER, work.option("dispatch") == FP8)


def is_routed(work: Training) -> bool:
    """Return whether the router decides where tokens go, so that nothing of it can be predicted."""
    spread = layout_of(work).experts
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


OPTIONS = MappingProxyType({
    "load": Values(BALANCED, parse=load_text, forms=f"{FORMS} or {ROUTER}"),
    "dedup": Values("rank", DEDUPS),
    "capacity_factor": Values(UNLIMITED, parse=capacity_text, forms=f"{UNLIMITED} or a factor"),
    "dispatch": Values(SAME, (SAME, FP8))})
"""Of strategies that divide experts, beside ``ep``."""


def idle(options: Mapping[str, Option]) -> dict[str, str]:
    """Return which of these options have no effect on one rank, and why."""
    return dict.fromkeys(("dedup", "dispatch"), "with ep=1") if options["ep"] == 1 else {}


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
    spread, experts = layout_of(work).experts, shape_of(work).experts
    assert spread and experts  # noqa: S101  (a training that spreads experts has both)
    return spread, work.batch_size // parts_of(work) * work.seq_length // work.cp, experts


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
    experts, spread = shape_of(work).experts, layout_of(work).experts
    if experts is None:
        return (f"{work.model} has no experts: name a model that has, or another strategy or ep"
                if OPTIONS.keys() & dict(work.options) else None)
    if spread is None:
        return "only strategies moe and hybrid train a model with experts"
    divided = work.replica_ranks > 1
    reasons = (
        (spread.load.name == MATRIX, "load matrix: says which ranks rows go to, not which experts "
         "a token has; primitive ep_dispatch_combine takes it"),
        (work.checkpointing in ("operators", OFFLOAD), f"checkpointing {work.checkpointing}: what "
         "experts keep of it is not planned; take selective or full"),
        (divided and work.checkpointing not in ("none", ATTENTION), f"checkpointing "
         f"{work.checkpointing} of experts is not planned with tp, pp or cp; take {ATTENTION}"),
        (divided and work.compile, "compile is not tried with experts and tp, pp or cp"),
        (spread.router and not work.trains, f"load {ROUTER}: ranks that compute or hear nothing of "
         "one another do not know where tokens go; give another load"))
    return (_with_nearest_ep(work, spread.ep, _undivided(work, spread.ep))
            or next((why for holds, why in reasons if holds), None)
            or spread.load.unfit(experts.number, experts.per_token))


def _undivided(work: Training, ep: int) -> str | None:
    """Return what groups of ``ep`` ranks cannot divide evenly, or None."""
    experts, layout = shape_of(work).experts, layout_of(replace(
        work, options=tuple({**dict(work.options), "ep": ep}.items())))
    assert experts  # noqa: S101  (asked of models that have them)
    same = layout.expert_groups.shards if layout.expert_groups else 1
    sharing = f"the {same} ranks that have the same"
    tp, of_copy = f" x tp={work.tp}" * (work.tp > 1), " in a copy" * (layout.shards > 1)
    ranks = layout.shards if layout.shards > 1 else work.dp * work.cp
    divided = (
        (ranks, f"ranks with tokens of their own{of_copy}", ep, f"into groups of ep={ep}"),
        (experts.number, "experts", ep, f"among {ep} ranks (ep)"),
        (experts.inner, "columns of experts", same * work.tp, f"among {sharing}{tp}"),
        (shape_of(work).hidden, "rows of experts", same, f"among {sharing}"),
        (experts.shared_inner, "columns of shared experts", work.tp, f"among {work.tp} ranks (tp)"))
    return next((f"{extent} {what} cannot be divided evenly {parts}"
                 for extent, what, by, parts in divided if extent % by), None)


def _with_nearest_ep(work: Training, ep: int, reason: str | None) -> str | None:
    """Return the reason, and which ``ep`` to take, the nearest of less and of more."""
    if reason is None:
        return None
    ranks = work.dp * work.cp
    fitting = [one for one in range(1, ranks + 1)
               if ranks % one == 0 and _undivided(work, one) is None]
    return reason + nearest("ep", ep, fitting)


def ranks_of_expert(work: Training) -> int:
    """Return how many ranks share an expert that ranks divide, each a part of its matrices."""
    groups = layout_of(work).expert_groups
    return groups.shards * work.tp if groups else 1


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
