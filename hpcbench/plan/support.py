"""The abilities of each backend, known without a machine; all else is a reason to skip.

Sources: the backend table of torch.distributed's documentation (gloo on GPU: no send, recv or
barrier), and runs of every collective, dtype, op and split on gloo with torch 2.13 on CPU. Facts
that only the machine can show (is nccl there?) are in ``needs``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hpcbench.config import axes
from hpcbench.operations.collectives import NUMBER_BYTES, Call, collective_spec
from hpcbench.records import dataclass


@dataclass(frozen=True, slots=True)
class BackendTraits:
    """The abilities of a backend, and its needs of the machine.

    ``device`` stands for ``auto``; ``excluded`` lists (collective, device) pairs that it cannot
    do, ``not_in_place`` collectives without an in-place form; ``even_only`` gives for collectives
    why their parts cannot differ in size; ``env`` are the variables that select the backend.

    ``direct_calls``: why it runs single collectives only, past torch; ``ops``: its reductions.
    ``averages`` are the dtypes of which it can make an avg, ``dtypes`` those that it takes at all;
    ``not_complex`` lists collectives without complex numbers.
    ``out_of_place`` are collectives that torch has in place only, and direct calls both ways."""

    device: str
    devices: tuple[str, ...]
    needs: tuple[str, ...] = ()
    excluded: frozenset[tuple[str, str]] = frozenset()
    even_only: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    min_world_size: int = 1
    not_in_place: frozenset[str] = frozenset()
    direct_calls: str = ""
    ops: tuple[str, ...] = axes.OPS
    dtypes: tuple[str, ...] = axes.DTYPES
    averages: tuple[str, ...] = (*axes.FLOATING_DTYPES, *axes.COMPLEX_DTYPES)
    not_complex: tuple[str, ...] = ()
    out_of_place: frozenset[str] = frozenset()


_ARITHMETIC = tuple(op for op in axes.OPS if op not in axes.BITWISE)
_NUMBERS = tuple(NUMBER_BYTES)
_UCC_EVEN_ONLY = (  # torch/csrc/distributed/c10d/ProcessGroupUCC.cpp
    ("all_gather", "ProcessGroupUCC::allgather takes every part to be as long as the rank's own"),
    ("reduce_scatter", "ProcessGroupUCC::reduce_scatter takes all to be as long as the first"),
)


def _ucc(layer: str, *devices: str, without: tuple[str, ...] = ()) -> BackendTraits:
    """Return the traits of UCC restricted to one transport layer, which lacks ``without``.

    The variables are UCC's (ucc_lib.c, ucc_cl.c: prefix UCC_CL_BASIC_, key TLS). A group of one
    rank is the business of its layer ``self``, so a group on another layer cannot be made."""
    device = devices[0] if len(devices) == 1 else "auto"
    return BackendTraits(device, devices, ("ucc",), min_world_size=2,
                         even_only=_UCC_EVEN_ONLY, ops=_ARITHMETIC, dtypes=_NUMBERS,
                         excluded=frozenset((name, each) for name in without for each in devices),
                         env=(("UCC_CLS", "basic"), ("UCC_CL_BASIC_TLS", layer)))


BACKEND_TRAITS: Mapping[str, BackendTraits] = MappingProxyType({
    "gloo": BackendTraits("cpu", ("cpu", "cuda", "mps"),  # on mps what calls no collective
                          excluded=frozenset({("send_recv", "cuda"), ("barrier", "cuda")}),
                          even_only=(("all_gather", "ProcessGroupGloo::allgather refuses parts "
                                      "of different sizes (invalid tensor size)"),),
                          not_complex=("gather",)),
    # it has neither bitwise reductions nor bool, which torch's ProcessGroupNCCL gives it as uint8;
    # ncclAvg of integers is ncclDevSumPostDiv (hostToDevRedOp, src/enqueue.cc of NCCL)
    "nccl": BackendTraits("cuda", ("cuda",), ("nccl",), ops=_ARITHMETIC,
                          averages=tuple(name for name in axes.DTYPES if name != "bool")),
    "ucc": BackendTraits("auto", ("auto", "cpu", "cuda"), ("ucc",), even_only=_UCC_EVEN_ONLY,
                         ops=_ARITHMETIC, dtypes=_NUMBERS),
    "ucc/tl/ucp": _ucc("ucp", "auto", "cpu", "cuda"),
    # ucc_tl_cuda_coll_init of UCC 1.10's tl_cuda_coll.c; its all_reduce is for NVLink SHARP only
    "ucc/tl/cuda": _ucc("cuda", "cuda", without=(
        "all_reduce", "reduce", "gather", "scatter", "barrier")),
    "ucc/tl/nccl": _ucc("nccl", "cuda"),
    # MPI_IN_PLACE leaves the result of a reduce_scatter at the buffer's begin, not in its slot
    "mpi": BackendTraits("cpu", ("cpu", "cuda"), ("mpi",),
                         not_in_place=frozenset({"reduce_scatter"})),
    "mpi/direct": BackendTraits(
        "cpu", ("cpu",), ("mpi",), not_in_place=frozenset({"reduce_scatter"}),
        even_only=tuple((name, "it calls MPI's forms for equal parts; take mpi")
                        for name in ("all_gather", "reduce_scatter", "all_to_all")),
        direct_calls="it calls MPI's own collectives, without torch; take mpi",
        ops=tuple(op for op in axes.OPS if op != "avg"), out_of_place=frozenset({"all_reduce"})),
})


_ANYTHING = BackendTraits("auto", ("auto", "cpu", "cuda"), averages=axes.DTYPES)


def traits_of(backend: str, device: str = "") -> BackendTraits:
    """Return the abilities of a backend; of torch:NAME those of a known library, else all.

    ``device`` chooses among the libraries of ``torch:cpu:gloo,cuda:nccl``, which runs on those."""
    if backend in BACKEND_TRAITS:
        return BACKEND_TRAITS[backend]
    library = axes.library_of(backend, device)
    traits = BACKEND_TRAITS[library] if library in ("gloo", "nccl", "ucc") else _ANYTHING
    named = tuple(name for name in axes.torch_libraries(backend) if name in _ANYTHING.devices)
    if len(named) == 1:
        traits = replace(traits, device=named[0], devices=named)
    elif named:
        traits = replace(traits, device="auto", devices=("auto", *named))
    return replace(traits, needs=(backend,))


def resolve_device(backend: str, device: str) -> str:
    """Return the device ``auto`` stands for; it stays ``auto`` where the machine decides."""
    return traits_of(backend).device if device == "auto" else device


def needs(backend: str, device: str) -> tuple[str, ...]:
    """Return the needs that only a probe shows: ``nccl``, ``ucc``, ``mpi``, torch:NAME, a GPU."""
    return traits_of(backend).needs + ((device,) if device in ("cuda", "mps") else ())


def unfit_world(backend: str, ranks: int, job_size: int) -> str | None:
    """Return why a case cannot run on so many ranks of a job of ``job_size``, or None."""
    if ranks > job_size:
        return f"world_size {ranks} is more than the job's {job_size} ranks"
    too_few = ranks < traits_of(backend).min_world_size
    return f"{backend} makes no group of {ranks} rank" if too_few else None


_NOT_OF_MPI = re.compile(r"(NCCL|RCCL|TORCH_NCCL|GLOO)_\w+")
"""Variables of libraries that MPI does not call: a sweep over backends may set them for all."""


def unfit_variables(backend: str, env: Iterable[tuple[str, str]]) -> str | None:
    """Return why a case cannot set these variables, or None: MPI and torch have read theirs."""
    if backend.startswith(axes.TORCH) or axes.library_of(backend) != "mpi":
        return None
    name = next((name for name, _ in env if not _NOT_OF_MPI.fullmatch(name)), None)
    return name and (f"env {name}: {backend} runs in the MPI process, for which no case can set "
                     "it: leave it out, and start one job for each value, with it set for mpirun")


def unfit_for_mps(ranks: int, dtype: str, calls: Sequence[Call]) -> str | None:
    """Return why Apple's GPU cannot run a case with these calls, or None.

    The table of torch.distributed's backends names none for it; torch.mps knows one device, which
    has no fp64."""
    if calls:
        return ("mps has no collective backend: what communicates is measured on device cpu or "
                "cuda; on mps there are compute_only of primitives, and trainings by single")
    if ranks > 1:
        return "mps is the one GPU of a machine, and so of one rank: give world_size 1"
    return "mps has no fp64: take fp32, or device cpu" if dtype == "fp64" else None


def unfit_for_graph(backend: str, device: str, calls: Sequence[Call]) -> str | None:
    """Return why a CUDA graph cannot hold these calls, or None.

    It holds what is enqueued on streams. torch's documentation names NCCL as the backend that can
    be captured. gloo and mpi move data by the host, or wait there; of ucc nothing is documented."""
    if device not in ("cuda", "auto"):
        return f"cuda_graph: a CUDA graph holds work of a GPU, not of {device}"
    if calls and axes.library_of(backend, device) != "nccl":
        return ("cuda_graph: calls of nccl can be captured, as torch documents, "
                f"not those of {backend}")
    waiting = next((call.collective for call in calls if call.collective == "barrier"), None)
    return waiting and ("cuda_graph: barrier makes the host wait for the GPU, which is refused "
                        "while a CUDA graph is captured")


def unsupported(backend: str, device: str, calls: Iterable[Call]) -> str | None:
    """Return why the backend cannot make these calls anywhere, or None if nothing is known."""
    traits = traits_of(backend, device)
    if device not in traits.devices:
        return f"{backend} does not run on {device}, only on {' or '.join(traits.devices)}"
    made = tuple(calls)
    if traits.direct_calls and not any(call.is_case for call in made):
        return f"{backend} runs single collectives only: {traits.direct_calls}"
    return next((reason for call in made for reason in _unsupported(backend, device, call)), None)


def _unfit_type(backend: str, traits: BackendTraits, call: Call) -> Iterator[str]:
    """Yield why a backend, or any, has no such call of this type."""
    name, dtype, op = call.collective, call.dtype, call.op
    if dtype not in traits.dtypes or (dtype in axes.COMPLEX_DTYPES and name in traits.not_complex):
        yield f"{backend} has no {name} of {dtype}"
    if op == "avg" and op not in traits.ops:
        yield f"{backend} has no avg: MPI has no reduction that divides; take mpi"
    if op in axes.BITWISE and op not in traits.ops:
        yield f"{backend} has no {op}; gloo and mpi have"
    if op in axes.BITWISE and dtype in (*axes.FLOATING_DTYPES, *axes.COMPLEX_DTYPES):
        yield f"{op} is of integers and bool, not of {dtype}"
    if dtype in axes.COMPLEX_DTYPES and op not in (None, "sum", "avg"):
        yield f"{dtype} has sum and avg only, not {op}"
    if op == "avg" and dtype == "bool":
        yield "bool has no avg"
    if op == "avg" and dtype not in traits.averages:
        yield f"{backend} averages floating dtypes only, not {dtype}; nccl can"


def _unsupported(backend: str, device: str, call: Call) -> Iterator[str]:
    """Yield why the backend cannot make a call, the most general reason first.

    A plug-in's collective is there on the backends that it names and that have what it calls."""
    traits = traits_of(backend, device)
    spec, name = collective_spec(call.collective), call.collective
    if spec.problem:
        yield spec.problem
    if (spec.name, device) in traits.excluded or (
            spec.backends and axes.library_of(backend, device) not in spec.backends):
        yield f"{backend} has no {spec.name} on {device}"
    if traits.direct_calls and spec.is_plugin:
        yield f"{backend} has no {spec.name}: {traits.direct_calls}"
    yield from (f"{backend} has no {called} on {device}, which {spec.name} calls"
                for called in spec.calls if (called, device) in traits.excluded)
    if call.dtype not in axes.DTYPES or call.op not in (None, *axes.OPS):
        yield f"{backend} has no {call.op or name} of {call.dtype}"
    elif spec.moves_data:
        yield from _unfit_type(backend, traits, call)
    more = (False,) if name in traits.out_of_place else ()
    if spec.in_place is not None and call.in_place not in (None, *spec.in_place, *more):
        yield f"{name} has no {'in-place' if call.in_place else 'out-of-place'} form"
    if call.in_place and name in traits.not_in_place:
        yield f"{backend} has no in-place {name}"
    if call.split != "even":
        if reason := dict(traits.even_only).get(name):
            yield f"{backend} has no uneven {name}: {reason}"
        if call.in_place:
            yield f"uneven {name} has no in-place form"
