"""The primitive of expert parallelism by a load: tokens to the ranks of their experts, and back.

Which experts a token goes to is the router's result, given by a load of `operations.loads`: all
ranks and implementations have the same one, and know the counts before the call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.primitive.plan.spec import (
    ImplementationSpec,
    PrimitiveSpec,
    Problem,
    Traffic,
    Work,
    not_divided,
    on_every_rank,
)
from hpcbench.operations.loads import (
    DEDUPS,
    FORMS,
    FP8,
    MATRIX,
    SAME,
    AnyRouting,
    ByteMatrix,
    Load,
    route,
    route_given,
)
from hpcbench.plan.points import Option, Values
from hpcbench.units import plural

NAME = "ep_dispatch_combine"
BYTES: Mapping[str, int] = MappingProxyType({**DTYPE_BYTES, FP8: 1})
"""Bytes of an element on the way; fp8 is e4m3, without scales."""


class ExpertTypes(NamedTuple):
    """The element types of tokens on the way to experts, and of results on the way back."""

    dispatch: str
    combine: str

    @classmethod
    def of(cls, options: Mapping[str, Option], dtype: str) -> ExpertTypes:
        ways = (str(options[name]) for name in cls._fields)
        return cls(*(dtype if way == SAME else way for way in ways))


def routing_of(
    options: Mapping[str, Option], ranks: int, m: int, k: int, dtype: str,
    matrix: ByteMatrix | None,
) -> AnyRouting:
    """Return the routing of a problem of m tokens of k elements; ``matrix`` is that of its load."""
    experts, tokens = int(options["experts"]), m // ranks
    if matrix is not None and options["load"] == MATRIX:
        row_bytes = k * BYTES[ExpertTypes.of(options, dtype).dispatch]
        return route_given(matrix, ranks, tokens, experts, row_bytes)
    return route(Load.from_text(str(options["load"])), ranks, tokens, experts,
                 int(options["top_k"]))


class LoadSums(NamedTuple):
    """Sums of a routing: copies that the busiest rank sends or receives, and those that leave or
    enter it; received copies, max over mean; tokens of the busiest expert, of the mean one, and of
    the experts of the busiest rank."""

    busiest: int
    busiest_wire: int
    max_over_mean: float
    expert_max: int
    expert_mean: float
    rank_max: int


@lru_cache(maxsize=256)
def sums_of(routing: AnyRouting, dedup: str) -> LoadSums:
    traffic, counts = routing.traffic(dedup), routing.of_experts()
    each = routing.experts // routing.ranks
    return LoadSums(
        traffic.busiest, traffic.busiest_wire, traffic.max_over_mean, max(counts),
        sum(counts) / len(counts),
        max(sum(counts[first:first + each]) for first in range(0, len(counts), each)))


def _sums(problem: Problem) -> LoadSums:
    p = problem
    return sums_of(routing_of(p.options, p.ranks, p.m, p.k, p.dtype, p.matrix),
                   str(p.options["dedup"]))


def _flops(problem: Problem, tokens: int) -> int:
    """Return the FLOPs of experts with so many tokens: two products each, or nothing."""
    return 4 * tokens * problem.n * problem.k if problem.options["product"] == "mlp" else 0


def _work(problem: Problem) -> Work:
    """Return the work of the busiest rank; sizes are those of nccl-tests' alltoallv."""
    p, sums = problem, _sums(problem)
    traffic = tuple(Traffic("all_to_all", sums.busiest * p.k * BYTES[way],
                            sums.busiest_wire * p.k * BYTES[way])
                    for way in ExpertTypes.of(p.options, p.dtype))
    whole = round(sums.expert_mean * int(p.options["experts"]))
    return Work(_flops(p, sums.rank_max), _flops(p, whole), traffic, (
        ("expert_tokens_max", sums.expert_max), ("expert_tokens_mean", sums.expert_mean),
        ("received_max_over_mean", sums.max_over_mean),
        ("busiest_copies", sums.busiest)))


def _unfit(problem: Problem) -> str | None:
    """Return why the ranks cannot have this load, or the ways these element types; or None."""
    p, experts, top_k = problem, int(problem.options["experts"]), int(problem.options["top_k"])
    if reason := not_divided(p.ranks, m=p.m, experts=experts):
        return reason
    for name, way in zip(ExpertTypes._fields, ExpertTypes.of(p.options, p.dtype), strict=True):
        if BYTES[way] > BYTES[p.dtype]:
            return f"{name} {way}: tokens are {p.dtype}, which is shorter"
    load = Load.from_text(str(p.options["load"]))
    if load.name == MATRIX:
        row_bytes = p.k * BYTES[ExpertTypes.of(p.options, p.dtype).dispatch]
        return (p.matrix.unfit_tokens(p.ranks, p.m // p.ranks, top_k, row_bytes) if p.matrix
                else "load matrix needs the key matrix: a table of bytes from rank to rank")
    return load.unfit(experts, top_k)


EP_DISPATCH_COMBINE = PrimitiveSpec(
    name=NAME, meaning="tokens to the ranks of their experts by a load, and back: y = sum w f(x)",
    orders=("dispatch_combine",), work=_work,
    unsharded=on_every_rank(lambda problem: 0), unfit=_unfit,
    inputs="hpcbench.kinds.primitive.run.dispatch_inputs:DispatchInputs", layers=("mlp",),
    options={
        "load": Values("balanced", parse=lambda text: Load.from_text(text).text,
                       forms=f"{FORMS} or {MATRIX}"),
        "dedup": Values("rank", DEDUPS), "experts": Values(8), "top_k": Values(2),
        "dispatch": Values(SAME, (SAME, FP8, "bf16", "fp32")),
        "combine": Values(SAME, (SAME, "bf16", "fp32")),
        "product": Values("none", ("none", "mlp"))},
    apart="ways of tokens to experts are implementations of their own")
"""X is (m, k): m / d tokens a rank, each with ``top_k`` of ``experts``, e / d of them on a rank.
Y is (m, k): the sums of what a token's experts return, times the router's weights.

- ``product`` ``none``: an expert multiplies its tokens by a number. ``mlp``: relu(x W1) W2, W1 of
  (k, n), W2 of (n, k).
- ``dedup`` ``rank``: a token is sent once to a rank, whose experts' results come back as one
  weighted sum; ``expert``: once to each expert, and each result comes back.
- ``dispatch``, ``combine``: element types on the way there and back."""


def _gathered(problem: Problem) -> tuple[Traffic, ...]:
    """Return an all-gather of all tokens, and the reduce-scatter of results for all."""
    wire = ExpertTypes.of(problem.options, problem.dtype)
    sizes = (problem.m * problem.k * BYTES[way] for way in wire)
    return tuple(Traffic(name, size, size * (problem.ranks - 1) // problem.ranks)
                 for name, size in zip(("all_gather", "reduce_scatter"), sizes, strict=True))


def _no_copies(primitive: str, problem: Problem) -> str | None:
    return ("every rank gets every token once: dedup rank" if problem.options["dedup"] != "rank"
            else None)


def _not_bf16(primitive: str, problem: Problem) -> str | None:
    ways = (problem.dtype, *ExpertTypes.of(problem.options, problem.dtype))
    return ("it is called with bf16 both ways: dtype bf16, without dispatch and combine"
            if set(ways) != {"bf16"} else _no_copies(primitive, problem))


_MOST_RANKS, _MOST_TOKENS = 64, 8192
"""Of NCCL EP: 8 nodes of 8 (RELEASE.md), and MAX_SUPPORTED_TOKENS_PER_RANK (common.hpp)."""


def _not_nccl_ep(primitive: str, problem: Problem) -> str | None:
    tokens = problem.m // problem.ranks
    if problem.ranks > _MOST_RANKS or tokens > _MOST_TOKENS:
        return (f"{plural(problem.ranks, 'rank')} of {plural(tokens, 'token')}: NCCL EP has at "
                f"most {_MOST_RANKS} ranks of {_MOST_TOKENS}")
    return _not_bf16(primitive, problem)


def _unequal_nodes(primitive: str, problem: Problem) -> str | None:
    size = int(problem.options["node_ranks"])
    return (f"{plural(problem.ranks, 'rank')} cannot be divided into nodes of {size}"
            if size and problem.ranks % size else None)


_RUN = "hpcbench.kinds.primitive.run.implementations.dispatch"
_ABSENT = MappingProxyType(dict.fromkeys(
    ("tp_columnwise", "tp_rowwise", "tp_mlp", "dp_allreduce", "ep_all_to_all"),
    f"it is a way of {NAME}"))
DISPATCHERS = (
    ImplementationSpec(
        "torch", "all_to_all_single of tokens, the experts, and all_to_all_single of results",
        {NAME: f"{_RUN}:Direct"}, devices=("cpu", "cuda")),
    ImplementationSpec(
        "hierarchical", "each way in two steps: among the ranks of a node, then between nodes",
        {NAME: f"{_RUN}:Hierarchical"}, options={"node_ranks": Values(0, least=0)},
        unfit=_unequal_nodes, absent=_ABSENT),
    ImplementationSpec(
        "allgather", "all_gather of all tokens, the experts, and reduce_scatter of results",
        {NAME: f"{_RUN}:Gathered"}, calls=("all_gather", "reduce_scatter"), traffic=_gathered,
        unfit=_no_copies, absent=_ABSENT),
    ImplementationSpec(
        "deep_ep", "DeepEP's ElasticBuffer: its dispatch, the experts, and its combine",
        {NAME: f"{_RUN}:DeepEp"}, calls=(), devices=("cuda",), backends=("nccl",),
        modules=("deep_ep",), least_capability=(9, 0), connects=True, unfit=_not_bf16,
        absent=_ABSENT),
    ImplementationSpec(
        "nccl_ep", "NCCL EP's dispatch (high throughput), the experts, and its combine",
        {NAME: f"{_RUN}:NcclEp"}, calls=(), devices=("cuda",), backends=("nccl",),
        modules=("nccl", "nccl.ep"), least_capability=(9, 0), connects=True, unfit=_not_nccl_ep,
        absent=_ABSENT),
)
