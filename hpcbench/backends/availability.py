"""Decide from facts whether a backend and its requirements can run on the ranks of a job.

Modules and compilers are checked only where a plan needs them: trying a compiler takes 0.3 s.
``python -m hpcbench.backends.availability 7.0`` tests whether this torch has code for GPUs of
compute capability 7.0 (for job files): exit code 2 and the remedy if not."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from hpcbench.backends.gpus import NvmlRefusals
from hpcbench.config.axes import TORCH, library_of, torch_libraries
from hpcbench.errors import PluginError, how_to_install
from hpcbench.kinds.registry import spec_of
from hpcbench.measurement.runner import runner_of
from hpcbench.operations.collectives import Call, cold_bytes, too_many_cold_sets
from hpcbench.plan.case import Case
from hpcbench.plan.support import unsupported
from hpcbench.plan.workload import Features
from hpcbench.records import dataclass
from hpcbench.trace.schema import bare_uuid
from hpcbench.units import grouped, plural, rank_list, size_text

_LAST_CUDA = {(5, 0): "12.6", (6, 0): "12.6", (7, 0): "12.6"}
"""Compute capability -> CUDA of the newest wheels of torch that have code for it, for those that
later wheels lack. github.com/pytorch/pytorch/issues/172352: since torch 2.11 the wheels for CUDA
12.8 begin with 7.5, CUDA 13 cannot do less; those for 12.6 have 5.0, 6.0 and 7.0."""

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)(a?)f?")


def without_code(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether none of ``architectures`` (torch.cuda.get_arch_list()) runs on a GPU.

    ``sm_80`` runs on all 8.x with x >= 0, PTX of ``compute_80`` on anything newer, ``sm_90a`` on
    9.0 only. Without a CUDA architecture (ROCm's ``gfx942``) it is False."""
    ours = [match for match in map(_ARCHITECTURE.fullmatch, architectures) if match]
    for match in ours:
        kind, built = match[1], (int(match[2]), int(match[3]))
        same_series = kind == "compute" or built[0] == capability[0]
        if built == capability if match[4] else built <= capability and same_series:
            return False
    return bool(ours)


def no_code_reason(
    capability: tuple[int, int], architectures: Sequence[str], torch_version: str,
) -> str | None:
    """Return why this torch has no code for such a GPU, and which build has; None if it has."""
    if not without_code(capability, architectures):
        return None
    major, minor = capability
    text = (f"torch {torch_version} has no code for sm_{major}{minor}, only for "
            f"{', '.join(architectures)}")
    cuda = _LAST_CUDA.get(capability)
    return text + (f"; the wheels for CUDA {cuda} have: pip install torch --index-url "
                   f"https://download.pytorch.org/whl/cu{cuda.replace('.', '')}" if cuda else
                   "; install a newer torch")


def why_not_judged(
    architectures: Sequence[str], torch_version: str, cuda: str | None, hip: str | None,
) -> str | None:
    """Return why a capability cannot be judged here, None where `no_code_reason` can.

    Older torches report no architectures where no GPU is visible, as on login nodes."""
    if hip:
        return f"torch {torch_version} is a build for ROCm: capabilities are CUDA's"
    if architectures:
        return None
    if cuda:
        return (f"torch {torch_version} (CUDA {cuda}) reports its architectures only where a GPU "
                "is visible: not checked here")
    return f"torch {torch_version} is no CUDA build: cases of GPUs will be skipped"


def main() -> int:
    """Report whether torch here can use GPUs of a capability."""
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d", sys.argv[1]):
        print("usage: python -m hpcbench.backends.availability CAPABILITY, such as 7.0 for V100",
              file=sys.stderr)
        return 2
    import torch

    major, minor = sys.argv[1].split(".")
    architectures = torch.cuda.get_arch_list()
    note = why_not_judged(architectures, torch.__version__, torch.version.cuda, torch.version.hip)
    if note:
        print(f"note: {note}")
    reason = no_code_reason((int(major), int(minor)), architectures, torch.__version__)
    if reason:
        print(f"hpcbench: {reason}", file=sys.stderr)
    return 2 if reason else 0


_DIVIDES_FIRST = "UCC_TL_UCP_REDUCE_AVG_PRE_OP"
_OF_HIP = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_UCS_FALSE = ("n", "no", "off", "0")  # ucs_config_sscanf_bool of UCX's parser.c


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The facts of one rank's machine (`backends.facts.gather_facts`), and its place on it."""

    rank: int
    hostname: str
    local_rank: int
    facts: Mapping[str, Any]


def unavailable(backend: str, device: str, ranks: Sequence[RankFacts]) -> str | None:
    """Return why ``backend`` cannot run on ``device`` on these ranks, or None."""
    reasons = [_not_built(backend, rank.facts) or _no_device(backend, device, rank.facts)
               for rank in ranks]
    if device == "cuda" and not any(reasons):
        reasons = [rank.facts["cuda"]["no_code"][index] if index is not None else
                   f"other ranks have the {plural(len(rank.facts['cuda']['names']), 'GPU')} that "
                   "it sees: one rank a GPU"
                   for rank, index in zip(ranks, gpu_indices(ranks), strict=True)]
    return first_reason(ranks, reasons)


def first_reason(ranks: Sequence[RankFacts], reasons: Sequence[str | None]) -> str | None:
    """Return the first rank's reason, with the rank's name unless all ranks have the same."""
    for rank, reason in zip(ranks, reasons, strict=True):
        if reason:
            everywhere = len(set(reasons)) == 1
            return reason if everywhere else f"rank {rank.rank} on {rank.hostname}: {reason}"
    return None


def resolve_device(backend: str, device: str, ranks: Sequence[RankFacts]) -> str:
    """Return ``cpu`` or ``cuda`` for ``auto``: a GPU when every rank has one of its own."""
    if device != "auto":
        return device
    return "cpu" if unavailable(backend, "cuda", ranks) else "cuda"


def _not_built(backend: str, facts: Mapping[str, Any]) -> str | None:
    if backend.startswith(TORCH):
        reason: str | None = facts["tools"][backend]["reason"]
        return reason
    name = library_of(backend)
    if name == "nccl" and not facts["cuda"]["available"]:
        return f"nccl needs a GPU: {facts['cuda']['reason']}"
    if name in ("ucc", "mpi") and facts[name]["reason"]:
        return f"{name}: {facts[name]['reason']}"
    if name == "ucc":
        layer, layers = backend.rpartition("/")[2], facts["ucc"]["layers"]
        if layer != backend and layers is not None and layer not in layers:
            return f"{backend}: this UCC has no layer {layer}, only {', '.join(layers)}"
    elif name != "mpi" and not facts["built"].get(name):
        return f"{name}: torch {facts['versions']['torch']} was built without it"
    return None


def is_gpu_lost(case: Case, ranks: Sequence[RankFacts]) -> bool:
    """Return whether a case needs GPUs and CUDA crashed or hung in a rank's probe: a failure, no
    skip."""
    needs_gpu = case.device == "cuda" or library_of(case.backend, case.device) == "nccl"
    return needs_gpu and any("cuda" in rank.facts.get("lost", ()) for rank in ranks)


def lacking(case: Case, device: str, ranks: Sequence[RankFacts]) -> str | None:
    """Return why ucc or mps lacks a call, its op or its dtype on some rank, or None."""
    if device == "mps" and case.workload.dtype == "bf16":
        refusals = [rank.facts["mps"]["without_bf16"] for rank in ranks]
        return (refusal := first_reason(ranks, refusals)) and f"mps has no bf16 here: {refusal}"
    if case.device == "auto" and case.backend.startswith(TORCH) and (
            reason := unsupported(case.backend, device, case.workload.features.calls)):
        return reason  # which of its libraries is called was not known to the plan
    if library_of(case.backend, device) != "ucc":
        return None
    reasons = (_lacks(case, call, device, ranks) for call in case.workload.features.calls)
    return next((reason for reason in reasons if reason), None)


def _lacks(case: Case, call: Call, device: str, ranks: Sequence[RankFacts]) -> str | None:
    names = [call.collective, call.op]
    names += [f"uneven {call.collective}"] if call.split != "even" else []
    for rank in ranks:
        ucc, torch_version = rank.facts["ucc"], rank.facts["versions"]["torch"]
        if (call.collective == "send_recv" and ucc["source"] == "torch_ucc"
                and case.backend in ("ucc/tl/cuda", "ucc/tl/nccl")):
            return f"torch_ucc sends and receives with UCX, never with {case.backend}"
        for name in names:
            if error := ucc["lacks"].get(name):
                return f"{ucc['source']} has no {name} that torch {torch_version} can call: {error}"
    return _lacking_among_ranks(case, call, device)


def _lacking_among_ranks(case: Case, call: Call, device: str) -> str | None:
    """Return why UCC lacks a call with 2 or more ranks, which the probe's one rank cannot show.

    UCC 1.10, run with 2 and 4 ranks: ec_cpu_reduce.c has no float16, and ucc_schedule.h overwrites
    the error, so that the call seems to succeed; torch_ucc ends the process there.
    reduce_scatter_ring.c, the only algorithm of layer ucp, refuses avg unless it may divide last.
    """
    if case.group_size == 1 or not call.op:
        return None
    if call.dtype == "fp16" and device == "cpu":
        return ("ucc has no reduction of fp16 on cpu: it would leave the data unreduced, or abort "
                "the process")
    if (call.op == "avg" and call.collective == "reduce_scatter"
            and (device == "cpu" or case.backend == "ucc/tl/ucp")
            and dict(case.env).get(_DIVIDES_FIRST, "y").lower() not in _UCS_FALSE):
        return f"UCC's layer ucp has no reduce_scatter of avg, but with {_DIVIDES_FIRST}=n in env"
    return None


def _no_device(backend: str, device: str, facts: Mapping[str, Any]) -> str | None:
    if backend.startswith(TORCH) and device not in (devices := facts["tools"][backend]["devices"]):
        return f"{backend} does not run on {device}: torch has it for {' and '.join(devices)}"
    if device == "cpu":
        return None
    if device == "mps":
        reason = facts["mps"]["reason"]
        return reason and f"no mps device: {reason}"
    if not facts["cuda"]["available"]:
        return f"no cuda device: {facts['cuda']['reason']}"
    if library_of(backend, device) == "ucc" and facts["ucc"]["without_cuda"]:
        return f"{backend} on cuda: {facts['ucc']['without_cuda']}"
    return None


def gpu_indices(ranks: Sequence[RankFacts]) -> list[int | None]:
    """Return the index of each rank's GPU among those it sees, None where none is left for it."""
    return assign_gpus([
        (rank.hostname, visible_gpus(rank.facts["cuda"]["uuids"], rank.facts["cuda"]["visible"]))
        for rank in ranks])


def known_uuid(uuid: str) -> str:
    """Return a UUID of torch, "" for one of zeros: HIP reports that for a GPU without one."""
    return uuid if uuid.strip("0-") else ""


def visible_devices(environ: Mapping[str, str], *, rocm: bool) -> str | None:
    """Return the GPUs that variables leave to a process, as one list; None: all.

    HIP takes CUDA_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL for HIP_VISIBLE_DEVICES; their numbers
    count the GPUs that ROCR_VISIBLE_DEVICES leaves (ROCm's guide to GPU isolation)."""
    names = _OF_HIP if rocm else ("CUDA_VISIBLE_DEVICES",)
    chosen = next((environ[name] for name in names if name in environ), None)
    below = environ.get("ROCR_VISIBLE_DEVICES") if rocm else None
    if chosen is None or below is None:
        return below if chosen is None else chosen
    left = below.split(",")
    return ",".join(left[int(entry)] if entry.strip().isdigit() and int(entry) < len(left)
                    else entry for entry in chosen.split(","))


def visible_gpus(uuids: Sequence[str], chosen: str | None) -> tuple[str, ...]:
    """Return a name for each visible GPU that is the same in all processes of the node.

    The UUID; where it is missing or repeated, its entry of ``chosen`` (`visible_devices`) or
    number."""
    if len({*filter(None, uuids)}) < len([*filter(None, uuids)]):  # parts of one GPU
        uuids = [""] * len(uuids)
    listed = [entry.strip() for entry in (chosen or "").split(",") if entry.strip()]
    listed = listed if len(listed) == len(uuids) else [str(i) for i in range(len(uuids))]
    return tuple(uuid or f"GPU {entry}" for uuid, entry in zip(uuids, listed, strict=True))


def assign_gpus(seen: Sequence[tuple[str, Sequence[str]]]) -> list[int | None]:
    """Return by rank the index of its GPU among those it sees, None if lower ranks have them all.

    ``seen`` holds by rank the host and `visible_gpus`. Each rank takes the first free one, whether
    it sees all GPUs of its node or some of its own (``srun --gpus-per-task``)."""
    assigned: set[tuple[str, str]] = set()
    places: list[int | None] = []
    for host, gpus in seen:
        free = [place for place, gpu in enumerate(gpus) if (host, gpu) not in assigned]
        places.append(free[0] if free else None)
        assigned.update((host, gpus[place]) for place in free[:1])
    return places


def unreachable(case: Case, device: str, ranks: Sequence[RankFacts]) -> str | None:
    """Return why ranks of a group cannot read each other's GPU memory, or None."""
    if device != "cuda" or not case.workload.features.reads_peers:
        return None
    places = {rank: _placed(ranks[rank], index)
              for rank, index in enumerate(gpu_indices(ranks)) if index is not None}
    reasons = (_why_unreachable(*pair) for group in case.group_ranks for pair in combinations(
        [places[rank] for rank in group if rank in places], 2))
    first = next((reason for reason in reasons if reason), None)
    return first and f"{case.workload.implementer} reads the memory of other ranks' GPUs: {first}"


class _Placed(NamedTuple):
    """A rank with its GPU's index among those it sees (``seen``: names common to all processes).

    ``domain``: the NVLink domain of its GPU, which may span nodes, or None."""

    rank: RankFacts
    gpu: int
    seen: tuple[str, ...]
    domain: str | None


def _placed(rank: RankFacts, gpu: int) -> _Placed:
    seen = visible_gpus(rank.facts["cuda"]["uuids"], rank.facts["cuda"]["visible"])
    topology = rank.facts.get("gpu_topology") or {}
    domains = zip(topology.get("uuids", []), topology.get("fabrics", []), strict=True)
    return _Placed(rank, gpu, seen, dict(domains).get(f"GPU-{bare_uuid(seen[gpu])}"))


def _why_unreachable(here: _Placed, there: _Placed) -> str | None:
    """Return why two ranks cannot read each other's GPU memory, or None.

    Torch refuses two memories of one node and one number as "allocations from overlapping devices"
    (CUDASymmetricMemory.cu)."""
    rank, other = here.rank, there.rank
    if rank.hostname != other.hostname:
        return None if here.domain and here.domain == there.domain else (
            f"rank {rank.rank} is on {rank.hostname}, rank {other.rank} on {other.hostname}, and "
            "no NVLink joins these nodes: give a world_size that fits one node")
    if here.gpu == there.gpu:
        return (f"torch distinguishes them by the number of the GPU, and ranks {rank.rank} and "
                f"{other.rank} on {rank.hostname} both see theirs as {here.gpu}: let every rank "
                "see all GPUs of its node (no --gpus-per-task, no CUDA_VISIBLE_DEVICES by rank)")
    peers, name = rank.facts["cuda"].get("peers"), there.seen[there.gpu]
    if peers is None or name not in here.seen or here.seen.index(name) in peers[here.gpu]:
        return None
    return (f"GPU {here.gpu} of rank {rank.rank} on {rank.hostname} has no peer-to-peer access "
            f"to that of rank {other.rank}")


def is_rocm_build(facts: Mapping[str, Any]) -> bool:
    return bool(facts.get("versions", {}).get("hip"))


def gpu_names(facts: Mapping[str, Any]) -> list[str]:
    """Return the names of the GPUs that a rank sees; Apple's has none from an older torch."""
    names = [*facts["cuda"]["names"]]
    return names if facts["mps"]["reason"] else [*names, facts["mps"]["name"] or "mps"]


def own_gpu(rank: RankFacts, index: int | None) -> dict[str, Any] | None:
    """Return index, uuid, name and `backends.gpus.gpu_details` of the GPU a rank takes, or None."""
    if index is None:
        return None
    cuda = rank.facts["cuda"]
    return {"index": index, "uuid": cuda["uuids"][index] or None, "name": cuda["names"][index],
            **(cuda["details"][index] or {})}


def gpu_refusals(rank: RankFacts, index: int | None) -> NvmlRefusals:
    """Return the findings of the probe's child on a rank's GPU, by NVML or amdsmi."""
    who = "amdsmi" if is_rocm_build(rank.facts) else "nvml"
    lost = rank.facts["lost"].get(who, "").partition(":")[0]
    refused = None if index is None else rank.facts["cuda"]["refused"][index]
    return NvmlRefusals(lost or None, refused or {})


def lost_lines(ranks: Sequence[RankFacts]) -> Iterator[str]:
    """Yield the loss by each child of the probe that crashed or hung, the ranks and a remedy."""
    lost = grouped((line, rank.rank) for rank in ranks for line in rank.facts["lost"].values())
    for line, numbers in lost.items():
        yield line if len(numbers) == len(ranks) else f"rank {rank_list(numbers)}: {line}"


COMPILER = "compiler"
"""The need of implementations that compile; every other need is a module (`Features.needs`)."""
_RUNNER = "runner "
"""Before the name of a kind of a plug-in."""
_EXTRAS = {
    **dict.fromkeys(("accelerate", "peft", "bitsandbytes", "transformers"),
                    how_to_install("models")),
    "torchtitan": "pip install --no-deps torchtitan==0.3.0, then spmd_types==0.2.3 tyro triton",
    "transformer_engine": "pip install transformer-engine[pytorch]",
    "nccl": "pip install nccl4py",
    "nvfuser_direct": "pip install nvfuser-cuXXX-torchYY, for the CUDA and torch there are",
}
"""Module -> how to install it: of ours with the versions that go together."""
_TRIAL_TIMEOUT_S = 60.0
_SOURCE = "#include <Python.h>\nint main(void) { return 0; }\n"


def wanted_tools(cases: Iterable[Case]) -> list[str]:
    """Return the tools that cases need: modules, ``compiler``, torch's backends, kinds' runners."""
    runs = [case for case in cases if not case.skip]
    return sorted({need for case in runs for need in case.workload.features.needs}
                  | {case.backend for case in runs if case.backend.startswith(TORCH)}
                  | {_RUNNER + case.kind for case in runs if spec_of(case.kind).is_plugin})


def tool_facts(wanted: Iterable[str]) -> dict[str, Any]:
    """Return why each tool cannot be used here, or None, as plain JSON values.

    For ``compiler`` {device: reason}, by the compilers that torch.compile and Triton start; for a
    backend of torch ``devices`` and ``reason``. A module is found, not imported; a runner is made.
    """
    return {name: _compilers() if name == COMPILER else
            _no_runner(name.removeprefix(_RUNNER)) if name.startswith(_RUNNER) else
            _backend_of_torch(name.removeprefix(TORCH)) if name.startswith(TORCH) else
            _no_module(name) for name in wanted}


def _backend_of_torch(name: str) -> dict[str, Any]:
    """Return ``devices`` that torch has the backend for, and ``reason``: why it is absent, or None.

    ``name`` is one backend, or DEVICE:BACKEND pairs between commas."""
    import torch.distributed as dist

    registered = getattr(dist.Backend, "_plugins", None)

    def can_open(each: str) -> bool:
        """torch also lists names, such as fake, that a module nobody imported would register."""
        return dist.is_backend_available(each) and (
            registered is None or each.upper() in registered
            or hasattr(dist, f"is_{each.lower()}_available"))

    libraries = torch_libraries(TORCH + name)
    absent = [each for each in dict.fromkeys([*libraries.values()] or [name]) if not can_open(each)]
    devices = [*libraries] or [
        *getattr(dist.Backend, "backend_capability", {}).get(name.lower(), ("cpu",))]
    there = " and ".join(filter(can_open, getattr(dist.Backend, "backend_list", ()))) or "none"
    return {"devices": devices, "reason": (
        f"torch has no backend {' and no '.join(absent)} here, only {there}" if absent else None)}


def missing_tool(case: Case, device: str, ranks: Sequence[RankFacts]) -> str | None:
    """Return why a case's workload cannot run on ``device`` on these ranks, or None if it can."""
    work, devices = case.workload, case.workload.features.only_on
    reasons = [rank.facts.get("tools", {}).get(_RUNNER + case.kind) for rank in ranks]
    if reason := first_reason(ranks, reasons):
        return f"kind {case.kind} cannot be used: {reason}"
    if devices and device not in devices:
        return f"{work.implementer} runs on {' or '.join(devices)} only, not on {device}"
    if devices == ("cuda",) and (
            reason := first_reason(ranks, [
                "written for NVIDIA GPUs, and torch "
                f"{rank.facts['versions']['torch']} is a build for ROCm"
                if is_rocm_build(rank.facts) else None for rank in ranks])):
        return f"{work.implementer}: {reason}"
    for need in work.features.needs:
        paths = [rank.facts["tools"][need] for rank in ranks]
        reasons = [each[device] for each in paths] if need == COMPILER else paths
        if reason := first_reason(ranks, reasons):
            return f"{work.implementer}: {reason}"
    return _unfit_gpu(case, ranks) if device == "cuda" else None


def _unfit_gpu(case: Case, ranks: Sequence[RankFacts]) -> str | None:
    """Return why the GPU of some rank is too old or too small, or its cache too large, or None."""
    work, indices = case.workload, gpu_indices(ranks)
    if least := work.features.least_capability:
        reasons = [_older(rank, index, least) for rank, index in zip(ranks, indices, strict=True)]
        if reason := first_reason(ranks, reasons):
            return f"{work.implementer} of {work.dtype} needs {reason}"
    reasons = [None if index is None else _unfit_size(
        work.features, _fact_of_gpu(rank, "multiprocessors", index),
        _fact_of_gpu(rank, "cache_bytes", index))
        for rank, index in zip(ranks, indices, strict=True)]
    reason = first_reason(ranks, reasons)
    return reason and f"{work.implementer}: {reason}"


def _unfit_size(
    features: Features, multiprocessors: int | None, cache_bytes: int | None,
) -> str | None:
    """Return why a GPU is too small, or its cache too large, or None; sizes may be unknown."""
    least = features.least_multiprocessors
    if multiprocessors is not None and multiprocessors < least:
        return f"the GPU has {multiprocessors} multiprocessors, and {least} are needed"
    where = (" on a GPU of unknown cache" if cache_bytes is None else
             f" on a GPU with a cache of {size_text(cache_bytes)}")
    return too_many_cold_sets(features.cold_bytes, cold_bytes(cache_bytes), where)


def _fact_of_gpu(rank: RankFacts, what: str, index: int) -> int | None:
    """Return a number of one of the GPUs that a rank sees, None if unknown."""
    numbers: Sequence[int | None] = rank.facts["cuda"].get(what, ())
    return numbers[index] if numbers else None


def _older(rank: RankFacts, index: int | None, least: tuple[int, ...]) -> str | None:
    """Return in words the GPU that is needed, or None if the rank's suffices; ROCm's never does."""
    if is_rocm_build(rank.facts):
        return "CUDA: on ROCm it was never tried"
    if index is None or tuple(own := rank.facts["cuda"]["capabilities"][index]) >= least:
        return None
    return (f"a GPU of compute capability {'.'.join(map(str, least))} or newer; "
            f"{rank.facts['cuda']['names'][index]} has {'.'.join(map(str, own))}")


def _no_runner(kind: str) -> str | None:
    try:
        runner_of(kind)
    except PluginError as error:
        return str(error)
    return None


def _no_module(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:  # of a package around it
        return f"the Python module {name} cannot be found: {error}"
    package, dot, _ = name.partition(".")
    missing = (f"this {package} has no module {name}: a newer one is needed" if dot else
               f"the Python module {name} is not installed: "
               f"{_EXTRAS.get(name, f'pip install {name}')}")
    return None if spec else missing


def _compilers() -> dict[str, str | None]:
    """Return by device why its compiler cannot be used, or None.

    For the CPU torch.compile starts $CXX, else g++ (torch._inductor.config, ``cpp.cxx``); for CUDA
    Triton starts $CC, else gcc or clang (triton.runtime.build)."""
    missing = _no_module("triton")
    c_compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
    return {"mps": "torch.compile was never tried on mps: take device cpu, or do not compile",
            "cpu": _cannot_compile("CXX", os.environ.get("CXX") or "g++", "c++", "-fopenmp"),
            "cuda": missing or _cannot_compile("CC", c_compiler, "c")}


def _cannot_compile(variable: str, compiler: str, language: str, *options: str) -> str | None:
    """Build a shared library against Python's headers; return what went wrong, or None."""
    with tempfile.TemporaryDirectory(prefix="hpcbench-compiler-") as folder:
        command = [compiler, "-x", language, "-", "-shared", "-fPIC", *options,
                   f"-I{sysconfig.get_path('include')}", "-o", f"{folder}/trial.so"]
        try:
            done = subprocess.run(command, input=_SOURCE, text=True, capture_output=True,
                                  errors="backslashreplace", timeout=_TRIAL_TIMEOUT_S, check=False)
        except FileNotFoundError:
            return f"there is no compiler {compiler}: install one, or set {variable}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"the compiler {compiler} does not run: {error}"
    if done.returncode == 0:
        return None
    errors = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()]
    return f"the compiler {compiler} fails: {(errors or [f'exit code {done.returncode}'])[0]}"


if __name__ == "__main__":
    sys.exit(main())
