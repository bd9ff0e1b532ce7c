"""What the ranks of a job report of themselves: all that is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter

from hpcbench.backends.availability import RankFacts
from hpcbench.grouping import grouped
from hpcbench.trace.clock import SyncRecord
from hpcbench.trace.typed import from_values

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank reports. Where something is missing, its ``..._error`` says why.

    Attributes:
        rank, local_rank: among all ranks, and among those of its node.
        hostname, node: the machine; ``node`` is the same for ranks that share it.
        mpi: what the MPI library calls itself, ``none`` without one.
        versions: `launch.probe.versions`.
        machine: `measure.environment.machine`.
        facts: `backends.facts.gather_facts` with ``mpi``; None if torch gave none.
        interface: what the job's sockets of this rank use, None if it has no name.
        clock: the comparison of the clocks, as `SyncRecord.to_json`.
        storage: `validation.storage_probe.probe` of the results folder.
        shm_bytes: free in /dev/shm; None if there is none.
        not_utf8: which texts of this rank are not UTF-8: `validation.outside_texts.not_utf8`.
        core_files: the limit of a core file in bytes, "unlimited", or 0 where none is written.
    """

    rank: int
    local_rank: int
    hostname: str
    node: str
    mpi: str
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None
    facts_error: str = ""
    interface: str | None = None
    network_error: str = ""
    clock: Mapping[str, Any] | None = None
    clock_error: str = ""
    storage: Mapping[str, Any] = field(default_factory=dict)
    shm_bytes: int | None = None
    core_files: int | str = 0
    not_utf8: tuple[str, ...] = ()

    def of(self, *names: str) -> Any:
        """Return the value of ``machine`` at this path, None where it is unknown."""
        value: Any = self.machine
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def rank_facts(self) -> RankFacts:
        """Return the facts as those who judge backends take them. There must be some."""
        if self.facts is None:
            raise ValueError(f"rank {self.rank} reported nothing of its torch: {self.facts_error}")
        return RankFacts(self.rank, self.hostname, self.local_rank, self.facts)

    def sync_record(self) -> SyncRecord | None:
        """Return the comparison of the clocks."""
        return None if self.clock is None else from_values(SyncRecord, self.clock)


RANK_REPORT = TypeAdapter(RankReport)
"""A report as plain JSON values and back, for the way to rank 0."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """The reports of all ranks, and which ranks did not answer.

    Attributes:
        announced: ranks and launcher that the launcher's variables speak of, or None.
        lonely_fix: what to do if MPI sees another number of ranks.
        lost: rank -> its host if known: who has not answered within ``timeout_s``.
        start_error: why there is no MPI, although a launcher started several ranks, or why ranks
            of torchrun did not meet.
    """

    world_size: int
    ranks: tuple[RankReport, ...]
    announced: tuple[int, str] | None = None
    lonely_fix: str = ""
    lost: Mapping[int, str] = field(default_factory=dict)
    timeout_s: float = 0.0
    start_error: str = ""

    @property
    def by_torchrun(self) -> bool:
        """Return whether torchrun started the ranks."""
        return self.announced is not None and self.announced[1] == "torchrun"

    @property
    def by_node(self) -> dict[str, list[RankReport]]:
        """Return the ranks of each node, by the node's identity."""
        return grouped((report.node, report) for report in self.ranks)

    @property
    def with_facts(self) -> list[RankReport]:
        """Return the ranks whose torch answered."""
        return [report for report in self.ranks if report.facts is not None]


def by_value(
    ranks: Iterable[RankReport], value: Callable[[RankReport], Value],
) -> dict[Value, list[int]]:
    """Return which ranks have which value; the one that most have comes first."""
    groups = grouped((value(report), report.rank) for report in ranks)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def reasons(
    ranks: Iterable[RankReport], reason: Callable[[RankReport], str | None],
) -> dict[str, list[int]]:
    """Return which ranks give which reason, without those that give none."""
    return {why: owners for why, owners in by_value(ranks, reason).items() if why}


def by_version(
    ranks: Iterable[RankReport], name: str, missing: str = "none",
) -> dict[str, list[int]]:
    """Return which ranks have which version of a library."""
    return by_value(ranks, lambda report: report.versions.get(name, missing))
