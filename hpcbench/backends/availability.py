"""Whether a backend can run on the ranks of a job, decided from facts before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one rank's machine has (`backends.facts.gather_facts`) and where the rank sits on it."""

    rank: int
    hostname: str
    local_rank: int
    facts: Mapping[str, Any]


def unavailable(backend: str, device: str, ranks: Sequence[RankFacts]) -> str | None:
    """Return why ``backend`` cannot run on ``device`` on these ranks, or None if it can.

    The first rank that cannot is named when the ranks differ.
    """
    reasons = [_unavailable_on(backend, device, rank) for rank in ranks]
    if device == "cuda" and not any(reasons) and (shared := _shared_gpu(ranks)):
        return shared
    bad = [(rank, reason) for rank, reason in zip(ranks, reasons, strict=True) if reason]
    if not bad:
        return None
    rank, reason = bad[0]
    everywhere = len(bad) == len(ranks) and len(set(reasons)) == 1
    return reason if everywhere else f"rank {rank.rank} on {rank.hostname}: {reason}"


def resolve_device(backend: str, device: str, ranks: Sequence[RankFacts]) -> str:
    """Return ``cpu`` or ``cuda`` for ``auto``: a GPU when every rank has one of its own."""
    if device != "auto":
        return device
    return "cpu" if unavailable(backend, "cuda", ranks) else "cuda"


def _unavailable_on(backend: str, device: str, rank: RankFacts) -> str | None:
    return _not_built(backend, rank.facts) or _no_device(backend, device, rank)


def _not_built(backend: str, facts: Mapping[str, Any]) -> str | None:
    name = backend.partition("/")[0]
    if name == "nccl" and not facts["cuda"]["available"]:
        return f"nccl needs a GPU: {facts['cuda']['reason']}"
    if name == "mpi":
        return facts["mpi"]["reason"] and f"mpi: {facts['mpi']['reason']}"
    if facts["built"].get(name):
        return None
    torch_version = facts["versions"]["torch"]
    if name == "ucc" and facts["torch_ucc"]:
        return "ucc: the torch_ucc plug-in is installed, but this hpcbench cannot load it yet"
    if name == "ucc":
        return f"ucc: torch {torch_version} was built without it, and torch_ucc is not installed"
    return f"{name}: torch {torch_version} was built without it"


def _no_device(backend: str, device: str, rank: RankFacts) -> str | None:
    if device == "cpu":
        return None
    if device == "mps":
        return "no backend of torch.distributed runs on mps"
    cuda = rank.facts["cuda"]
    if not cuda["available"]:
        return f"no cuda device: {cuda['reason']}"
    if gpu_index(rank) >= len(cuda["names"]):
        return f"{len(cuda['names'])} GPU(s) for local rank {rank.local_rank}: one rank a GPU"
    return None


def gpu_index(rank: RankFacts) -> int:
    """Return which visible GPU a rank takes: its own if the launcher shows it only one."""
    return 0 if len(rank.facts["cuda"]["names"]) == 1 else rank.local_rank


def _shared_gpu(ranks: Sequence[RankFacts]) -> str | None:
    """Return a reason if two ranks would take one GPU."""
    taken: dict[tuple[str, str], int] = {}
    for rank in ranks:
        cuda = rank.facts["cuda"]
        uuid = cuda["uuids"][gpu_index(rank)] or f"visible GPU {gpu_index(rank)}"
        if (other := taken.setdefault((rank.hostname, uuid), rank.rank)) != rank.rank:
            return (f"ranks {other} and {rank.rank} on {rank.hostname} share one GPU ({uuid}): "
                    "one rank a GPU")
    return None
