"""The primitives and our implementations as plans know them: what each does, which problems fit.

Operands and results are in `kinds.primitive.run.inputs`, what runs in `run.implementations`.

Which primitives and implementations there are: ours, and those of plug-ins (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

from hpcbench.config.axes import SPLITS
from hpcbench.kinds.primitive.plan.dispatch import DISPATCHERS, EP_DISPATCH_COMBINE
from hpcbench.kinds.primitive.plan.spec import (
    ImplementationSpec,
    PrimitiveSpec,
    Problem,
    Traffic,
    Work,
    not_divided,
    on_every_rank,
)
from hpcbench.operations.collectives import weights
from hpcbench.plan.points import Values
from hpcbench.records import dataclass
from hpcbench.registry import Offer
from hpcbench.registry import Registry as Named
from hpcbench.units import grouped

_INPUTS = "hpcbench.kinds.primitive.run.inputs"


def _around(collective: str, problem: Problem, elements: int) -> Traffic:
    """Return the traffic once round a ring: all elements but a rank's own part."""
    size = elements * problem.element_bytes
    return Traffic(collective, size, size * (problem.ranks - 1) // problem.ranks)


def _added(problem: Problem, elements: int) -> Traffic:
    """Return an all-reduce, which travels round a ring twice."""
    once = _around("all_reduce", problem, elements)
    return Traffic(once.collective, once.size_bytes, 2 * once.wire_bytes)


def _divided(**extents: str) -> Callable[[Problem], str | None]:
    """Return a check of extents, letters by order: why one cannot be divided, or None."""
    def unfit(problem: Problem) -> str | None:
        return not_divided(problem.ranks, **{
            name: getattr(problem, name) for name in extents[problem.order]})
    return unfit


def _columnwise(problem: Problem) -> Work:
    """Return 2 m n k flops over all ranks, d times as many where all ranks compute all of C."""
    p, flops = problem, problem.product_flops
    if p.order == "AG_before":
        every = p.options["weight"] == "replicated"
        flops_each = flops if every else flops // p.ranks
        return Work(flops_each, flops_each * p.ranks, (_around("all_gather", p, p.m * p.k),))
    return Work(flops // p.ranks, flops, (_around("all_gather", p, p.m * p.n),))


def _columnwise_unfit(problem: Problem) -> str | None:
    columns = problem.order == "AG_before" and problem.options["weight"] == "sharded"
    return not_divided(problem.ranks, m=problem.m, **({"n": problem.n} if columns else {}))


TP_COLUMNWISE = PrimitiveSpec(
    name="tp_columnwise", meaning="all-gather + matrix product: C = A W, rows of A on the ranks",
    orders=("AG_before", "AG_after"), work=_columnwise,
    unsharded=on_every_rank(lambda problem: problem.product_flops), unfit=_columnwise_unfit,
    inputs=f"{_INPUTS}:ColumnwiseInputs",
    options={"weight": Values("sharded", ("sharded", "replicated"))},
    layers=("attention_qkv", "mlp_up"), divides_layer=True,
    decided={"AG_after": {"weight": "replicated"}})
"""A is (m, k), W is (k, n), C is (m, n). A rank has rows of A.

- ``AG_before``: A is gathered, each rank multiplies all of A by its columns of W and keeps its
  columns of C: Megatron's column-parallel layer under sequence parallelism. With ``weight``
  ``replicated`` each rank has all of W and computes all of C: what DDLB calls AG_before.
- ``AG_after``: each rank multiplies its rows of A by all of W, and C is gathered."""


def _rowwise(problem: Problem) -> Work:
    p, flops = problem, problem.product_flops
    scatters = p.order == "RS_after"
    traffic = _around("reduce_scatter", p, p.m * p.n) if scatters else _added(p, p.m * p.n)
    return Work(flops // p.ranks, flops, (traffic,))


TP_ROWWISE = PrimitiveSpec(
    name="tp_rowwise", meaning="matrix product + reduction: C = A W, columns of A on the ranks",
    orders=("RS_after", "AR_after"), work=_rowwise,
    unsharded=on_every_rank(lambda problem: problem.product_flops),
    unfit=_divided(RS_after="km", AR_after="k"), inputs=f"{_INPUTS}:RowwiseInputs",
    layers=("attention_out", "mlp_down"), divides_layer=True)
"""A is (m, k), W is (k, n), C is (m, n). Each rank's product is a partial sum of all of C.

- ``RS_after``: reduce-scatter; each rank keeps rows of C (sequence parallelism).
- ``AR_after``: all-reduce; each rank has all of C."""


def _mlp(problem: Problem) -> Work:
    """Return 4 m n k flops, divided among the ranks; the activation is not counted."""
    p, flops = problem, 2 * problem.product_flops
    traffic: tuple[Traffic, ...] = (_added(p, p.m * p.k),)
    if p.order == "sequence_parallel":
        traffic = (_around("all_gather", p, p.m * p.k), _around("reduce_scatter", p, p.m * p.k))
    return Work(flops // p.ranks, flops, traffic)


TP_MLP = PrimitiveSpec(
    name="tp_mlp", meaning="column-wise product, activation, row-wise product: Y = act(X W1) W2",
    orders=("sequence_parallel", "AR_after"), work=_mlp,
    unsharded=on_every_rank(lambda problem: 2 * problem.product_flops),
    unfit=_divided(sequence_parallel="nm", AR_after="n"), inputs=f"{_INPUTS}:MlpInputs",
    options={"activation": Values("relu", ("relu", "gelu"))}, layers=("mlp",),
    divides_layer=True)
"""X is (m, k), W1 is (k, n), W2 is (n, k), Y is (m, k): m tokens, hidden size k, inner size n.

Columns of W1 and rows of W2 are on the ranks.

- ``sequence_parallel``: a rank has rows of X; all-gather before, reduce-scatter after, and it
  keeps rows of Y.
- ``AR_after``: each rank has all of X; all-reduce after, and all of Y."""


def _gradient_flops(problem: Problem) -> int:
    return problem.product_flops * int(problem.options["layers"])


def _gradients(problem: Problem) -> Work:
    """Return 2 m n k flops a layer, divided among the ranks."""
    p, flops = problem, _gradient_flops(problem)
    size = p.n * p.k * p.element_bytes * int(p.options["layers"])
    return Work(flops // p.ranks, flops,
                (Traffic("all_reduce", size, 2 * size * (p.ranks - 1) // p.ranks),))


DP_ALLREDUCE = PrimitiveSpec(
    name="dp_allreduce", meaning="weight gradients of several layers + all-reduce: G = sum D^T X",
    orders=("AR_after",), work=_gradients, unsharded=on_every_rank(_gradient_flops),
    unfit=_divided(AR_after="m"), inputs=f"{_INPUTS}:GradientInputs",
    options={"layers": Values(4)},
    layers=("attention_qkv", "attention_out", "mlp_up", "mlp_down"))
"""G = D^T X of each of ``layers`` layers: X is (m, k), the layer's inputs; D is (m, n), the
gradients of its outputs; G is (n, k). A rank has m / d rows of X and D, and ends with all of G.

- ``AR_after``: all products, then the all-reduce. Implementations that overlap reduce the
  gradients of earlier layers (a bucket) under the product of later ones."""


def tokens_of_experts(split: str, ranks: int, tokens: int) -> tuple[int, ...]:
    """Return how many of a rank's ``tokens`` go to each expert: its share, to less than a token.

    Shares are rounded down, and what is left over goes to those that lost most, the first of
    equals (method of the largest remainder)."""
    shares = weights(split, ranks)
    whole = sum(shares)
    counts = [tokens * share // whole for share in shares]
    lacking = sorted(range(ranks), key=lambda expert: -(tokens * shares[expert] % whole))
    for expert in lacking[:tokens - sum(counts)]:
        counts[expert] += 1
    return tuple(counts)


def _experts(problem: Problem) -> Work:
    """Return 2 m n k flops over all ranks, and those of the expert with the most tokens.

    The sizes are those of nccl-tests' alltoallv: the most that a rank sends or receives."""
    p = problem
    counts = tokens_of_experts(str(p.options["split"]), p.ranks, p.m // p.ranks)
    heaviest = max(counts) * p.ranks
    rows = max(heaviest, p.m // p.ranks)
    crossing = max(max(counts) * (p.ranks - 1), p.m // p.ranks - min(counts))
    traffic = tuple(
        Traffic("all_to_all", rows * width * p.element_bytes, crossing * width * p.element_bytes)
        for width in (p.k, p.n))
    return Work(2 * heaviest * p.n * p.k, p.product_flops, traffic)


EP_ALL_TO_ALL = PrimitiveSpec(
    name="ep_all_to_all", meaning="tokens to experts, product, and back: y = x W_e",
    orders=("dispatch_combine",), work=_experts,
    unsharded=on_every_rank(lambda problem: problem.product_flops),
    unfit=_divided(dispatch_combine="m"), inputs=f"{_INPUTS}:ExpertInputs",
    options={"split": Values("even", SPLITS)}, layers=("mlp_up",))
"""X is (m, k): m / d tokens a rank, sorted by expert. Rank e holds one expert, W_e of (k, n). A
token of expert e becomes y = x W_e; Y is (m, n), and each rank ends with those of its own tokens,
in their order. ``split`` sets how many tokens of each rank go to each expert (`weights`).

- ``dispatch_combine``: an all_to_all of tokens, the product, an all_to_all of results."""

PRIMITIVES = (TP_COLUMNWISE, TP_ROWWISE, TP_MLP, DP_ALLREDUCE, EP_ALL_TO_ALL,
              EP_DISPATCH_COMBINE)


ALIASES: Mapping[str, str] = MappingProxyType({"pytorch": "torch"})
_NVFUSER = {
    "algorithm": Values("default", ("default", "coll_pipeline", "p2p_pipeline")),
    "s": Values(8), "offset_stream_indexing_by_rank": Values(True, (True, False)),
    "multicast_protocol": Values("default", ("default", "memcpy", "multimem", "batch_memcpy")),
    "inter_stream_synchronization": Values(False, (True, False)),
    "communicator": Values("group", ("group", "cuda")),
}
"""DDLB's options, and its backend ``cuda`` as ``communicator``: nvFuser's own copies between GPUs
instead of the process group of the case's backend."""
ELSEWHERE: Mapping[str, Mapping[str, Values]] = MappingProxyType({
    "fuser": _NVFUSER, "transformer_engine": {}, "jax": {},
})
"""Implementations of DDLB that only a plug-in can bring here, with DDLB's options for them."""
PACKAGES: Mapping[tuple[str, str], str] = MappingProxyType({
    (name, primitive): f"hpcbench-{package}" for name, package in (
        ("fuser", "nvfuser"), ("transformer_engine", "transformer-engine"), ("jax", "jax"))
    for primitive in ("tp_columnwise", "tp_rowwise")})
"""(implementation, primitive) -> the package of folder ``plugins`` that brings it."""
_CLASSES = MappingProxyType({
    "tp_columnwise": "Columnwise", "tp_rowwise": "Rowwise", "tp_mlp": "Mlp",
    "dp_allreduce": "Gradients", "ep_all_to_all": "Experts",
})
_RUN = "hpcbench.kinds.primitive.run.implementations"
EVERY = tuple(_CLASSES)
TENSOR_PARALLEL = ("tp_columnwise", "tp_rowwise", "tp_mlp")


def _runners(module: str, *primitives: str) -> Mapping[str, str]:
    return MappingProxyType({name: f"{_RUN}.{module}:{_CLASSES[name]}" for name in primitives})


def _whole_chunks(primitive: str, problem: Problem) -> str | None:
    chunks = int(problem.options["chunks"])
    if primitive == "dp_allreduce":
        what, extent = "layers", int(problem.options["layers"])
    elif primitive == "ep_all_to_all":
        return None  # chunks of tokens differ in size by one at most
    else:
        what, extent = "rows of a rank", problem.m // problem.ranks
        if problem.order == "AR_after":
            what, extent = "rows", problem.m
    return f"{extent} {what} cannot be cut into {chunks} equal chunks" if extent % chunks else None


MOST_BLOCKS = 64
"""The most blocks of NCCL, whatever its variables ask for (MAXCHANNELS in src/include/device.h: 64
since NCCL 2.25, 32 before)."""
_RAISE_BLOCKS = ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
"""Variables by which NCCL may have more blocks than NCCL_MAX_CTAS allows."""
_FUSED = frozenset({("tp_columnwise", "AG_before"), ("tp_rowwise", "RS_after"),
                    ("tp_mlp", "sequence_parallel")})
_NOT_FUSED = MappingProxyType({name: "torch fuses all-gathers and reduce-scatters with a product "
                                     "only" for name in ("dp_allreduce", "ep_all_to_all")})


def _unfit_for_triton(primitive: str, problem: Problem) -> str | None:
    if problem.dtype == "fp64":
        return "the kernel accumulates in fp32, which is too little for fp64"
    return _whole_chunks(primitive, problem)


def reserved(variables: Mapping[str, str]) -> int:
    """Return how many multiprocessors NCCL can need under these environment variables."""
    most = variables.get("NCCL_MAX_CTAS", "")
    if not most.isdigit() or any(name in variables for name in _RAISE_BLOCKS):
        return MOST_BLOCKS
    return min(int(most) or MOST_BLOCKS, MOST_BLOCKS)


IMPLEMENTATIONS = (
    ImplementationSpec(
        "compute_only", "the product alone, on operands that are already in place",
        {**_runners("in_turn", *TENSOR_PARALLEL, "dp_allreduce"),
         "ep_all_to_all": f"{_RUN}.in_turn:ExpertsAlone"}, part="compute", calls=(),
        devices=("cpu", "cuda", "mps"),
        options={"size": Values("sharded", ("sharded", "unsharded"))}),
    ImplementationSpec(
        "comm_only", "the communication alone, of data that are already computed",
        _runners("comm_only", *EVERY), part="communicate"),
    ImplementationSpec(
        "torch", "torch.distributed's collectives and torch.matmul, one after the other",
        _runners("in_turn", *EVERY)),
    ImplementationSpec(
        "functional", "torch's functional collectives, which return tensors that wait when used",
        _runners("in_turn", *EVERY)),
    ImplementationSpec(
        "dtensor", "DTensor: placements are declared, torch chooses the collectives",
        _runners("dtensor", *TENSOR_PARALLEL, "dp_allreduce"),
        modules=("torch.distributed.tensor",),  # public since torch 2.5
        absent={"ep_all_to_all": "DTensor has no placement for parts of different sizes that data "
                                 "decide"}),
    ImplementationSpec(
        "chunked_pipeline", "communication of one chunk under the product of another",
        _runners("chunked_pipeline", *EVERY),
        options={"chunks": Values(4)}, unfit=_whole_chunks, overlaps=True),
    ImplementationSpec(
        "p2p_ring", "each step multiplies a block while its successor travels round a ring",
        _runners("p2p_ring", *TENSOR_PARALLEL), calls=("send_recv",), overlaps=True,
        orders=frozenset({("tp_columnwise", "AG_before"), ("tp_columnwise", "AG_after"),
                          ("tp_rowwise", "RS_after"), ("tp_mlp", "sequence_parallel")}),
        absent={"dp_allreduce": "a ring of whole gradients is what all_reduce does itself",
                "ep_all_to_all": "all ranks exchange with all: a ring would carry tokens past "
                                 "ranks that do not need them"}),
    ImplementationSpec(
        "symm_mem", "torch's fused operators over symmetric memory, on GPUs",
        _runners("symm_mem", *TENSOR_PARALLEL), calls=(), orders=_FUSED, devices=("cuda",),
        absent=_NOT_FUSED, overlaps=True, reads_peers=True),
    ImplementationSpec(
        "symm_mem_fallback", "what torch does in their place without symmetric memory, unfused",
        _runners("symm_mem", *TENSOR_PARALLEL), orders=_FUSED, absent=_NOT_FUSED),
    ImplementationSpec(
        "compiled", "torch.compile of functional collectives and products",
        _runners("compiled", *EVERY), compiles=True),
    ImplementationSpec(
        "compiled_async_tp", "torch.compile, fusing as symm_mem does (async tensor parallelism)",
        _runners("compiled", *TENSOR_PARALLEL), calls=(), orders=_FUSED,
        devices=("cuda",), modules=("triton",), compiles=True, absent=_NOT_FUSED, overlaps=True,
        reads_peers=True),
    ImplementationSpec(
        "triton", "a kernel that multiplies chunks of the all-gather as they arrive, on GPUs",
        _runners("triton_kernel", "tp_columnwise"), options={"chunks": Values(4)},
        orders=frozenset({("tp_columnwise", "AG_before")}), devices=("cuda",),
        least_capability=(8, 0),  # for less, Triton 3.7 uses no tensor cores and spills registers
        least_multiprocessors=lambda variables: reserved(variables) + 1,
        modules=("triton",), compiles=True, unfit=_unfit_for_triton, overlaps=True,
        absent={name: "only the all-gather before a product is written" for name in EVERY
                if name != "tp_columnwise"},
        env=lambda _primitive, _problem: {"NCCL_MAX_CTAS": "32"},  # its kernel leaves them room
        uncaptured="a graph may start the product of triton before the all-gather that it waits "
                   "for; it was never tried"),
)


AXES_OF_POINTS = ("backend", "order")
"""Keys of a set of options that are axes of every implementation; no option has such a name."""
NOBODY = "nobody has written it"
ENTRY_POINTS = "hpcbench.primitives"
"""The group of entry points; each is a PrimitiveSpec, an ImplementationSpec, or a list of them."""
Spec = PrimitiveSpec | ImplementationSpec
_OURS: tuple[Spec, ...] = (*PRIMITIVES, *IMPLEMENTATIONS, *DISPATCHERS)


@dataclass(frozen=True, slots=True)
class PrimitiveRegistry:
    """Everything that can be named in a block of primitives, by name.

    ``aliases`` are other tools' names of implementations, ``elsewhere`` the implementations with
    their options that only a plug-in can bring."""

    primitives: Mapping[str, PrimitiveSpec]
    implementations: Mapping[str, Sequence[ImplementationSpec]]
    aliases: Mapping[str, str]
    elsewhere: Mapping[str, Mapping[str, Values]]
    plugins: tuple[Offer[Spec], ...] = ()

    def is_known(self, name: str) -> bool:
        """Return whether an implementation of this name is offered, or another tool has it."""
        return self.aliases.get(name, name) in self.implementations or name in self.elsewhere

    def names(self) -> list[str]:
        """Return the names of all implementations."""
        return list(dict.fromkeys([*self.implementations, *self.aliases, *self.elsewhere]))

    def broken_text(self) -> str:
        """Return which plug-ins could not be loaded, for the end of a message; else nothing."""
        problems = [f"{item.name}: {item.problem}" for item in self.plugins if item.problem]
        return f"; plug-ins that cannot be used: {'; '.join(problems)}" if problems else ""

    def options(
        self, name: str, primitives: Sequence[PrimitiveSpec],
    ) -> dict[str, list[Values]]:
        """Return the values that each option may have in one of the primitives."""
        specs = ((primitive, self.implementation(name, primitive.name)) for primitive in primitives)
        return grouped(
            (option, values) for primitive, spec in specs for option, values in {
                **primitive.options,
                **(spec.options if spec else self.elsewhere.get(name, {}))}.items())

    def implementation(self, name: str, primitive: str) -> ImplementationSpec | None:
        """Return the implementation of a primitive by name: ours, else a plug-in's, else None."""
        specs = self.implementations.get(self.aliases.get(name, name), ())
        return next((spec for spec in specs if primitive in spec.runners), None)

    def classes(self, primitive: str, implementation: str) -> tuple[str, str] | None:
        """Return ``module:class`` of the inputs and of the runner; None if it is not installed."""
        spec = self.implementation(implementation, primitive)
        if spec is None or primitive not in self.primitives:
            return None
        return self.primitives[primitive].inputs, spec.runners[primitive]

    def absent(self, name: str, primitive: str) -> str | None:
        """Return why a known implementation has none of this primitive; None if it has one."""
        if self.implementation(name, primitive):
            return None
        specs = self.implementations.get(self.aliases.get(name, name), ())
        reasons = [spec.absent[primitive] for spec in specs if primitive in spec.absent]
        if reasons or specs or (name, primitive) not in PACKAGES:
            return reasons[0] if reasons else self.primitives[primitive].apart or NOBODY
        package = PACKAGES[name, primitive]
        return (f"the plug-in {package} gives it: pip install ./plugins/{package} in a checkout of "
                "hpcbench (docs/plugins.md)")


def load_registry() -> PrimitiveRegistry:
    """Return the registry of our own and every plug-in's."""
    registry = Named[Spec]("{}", _OURS, ENTRY_POINTS, (PrimitiveSpec, ImplementationSpec),
                           names=_names)
    specs = tuple(registry.values())
    return PrimitiveRegistry(
        {spec.name: spec for spec in specs if isinstance(spec, PrimitiveSpec)},
        grouped((ALIASES.get(spec.name, spec.name), spec) for spec in specs
                if isinstance(spec, ImplementationSpec)),
        ALIASES, ELSEWHERE, registry.offers)


def _names(spec: Spec) -> list[str]:
    """Return the titles of a specification; several may share a name, for different primitives."""
    if isinstance(spec, PrimitiveSpec):
        return [f"primitive {spec.name}"]
    name = ALIASES.get(spec.name, spec.name)
    return [f"{name} of {primitive}" for primitive in spec.runners]


@cache
def installed() -> PrimitiveRegistry:
    """Return the same as `load_registry`, read once: for processes that only run cases."""
    return load_registry()


def is_ours(spec: Spec) -> bool:
    """Return whether a specification is of this package, not a plug-in's."""
    return any(spec is own for own in _OURS)
