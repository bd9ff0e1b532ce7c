"""Our implementations of the primitives: what each is, which primitives it has, and why not more.

What runs is in `kinds.primitive.run.implementations`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, Problem
from hpcbench.plan.options import Values

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
    """Return why what is cut into chunks cannot be cut evenly, or None."""
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
_ASK_FOR_MORE = ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
"""Variables by which NCCL may have more blocks than NCCL_MAX_CTAS says."""
_FUSED = frozenset({("tp_columnwise", "AG_before"), ("tp_rowwise", "RS_after"),
                    ("tp_mlp", "sequence_parallel")})
_NOT_FUSED = MappingProxyType({name: "torch fuses all-gathers and reduce-scatters with a product "
                                     "only" for name in ("dp_allreduce", "ep_all_to_all")})


def _unfit_for_triton(primitive: str, problem: Problem) -> str | None:
    """Return why the kernel cannot take a problem, or None."""
    if problem.dtype == "fp64":
        return "the kernel accumulates in fp32, which is too little for fp64"
    return _whole_chunks(primitive, problem)


def reserved(variables: Mapping[str, str]) -> int:
    """Return how many multiprocessors NCCL can need under these environment variables."""
    most = variables.get("NCCL_MAX_CTAS", "")
    if not most.isdigit() or any(name in variables for name in _ASK_FOR_MORE):
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
        {**_runners("chunked_pipeline", *TENSOR_PARALLEL, "dp_allreduce"),
         **_runners("chunked_experts", "ep_all_to_all")},
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
