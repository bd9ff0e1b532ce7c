"""The workload of a case, as far as every kind of case has it.

A case may be several runs (`Workload.next_try`). Every try has new workers, so that nothing of an
earlier one is left, and its end costs no other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from hpcbench.operations.collectives import Call
from hpcbench.records import dataclass

MOST_TRIES = 40
"""Tries of one case at most, whatever its workload asks for."""
TRIES = "tries"  # the key of rank 0's detail for the tries of a case


class Ended(str, Enum):
    """How a run ended on all ranks together."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    """A rank ran out of memory and reported it."""
    DIED = "died"
    """A worker was killed, or ended by itself."""
    ERROR = "error"
    """Anything else, an end on request included."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One run of a case: of which workload, which values distinguish it, how it ended and why, and
    how long it took."""

    workload: Workload
    values: Mapping[str, Any]
    ended: Ended
    reason: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**self.values, "ended": self.ended.value, "reason": self.reason,
                "seconds": round(self.seconds, 3)}


class Choice(NamedTuple):
    """Values that distinguish a workload, by name (an option is ``options.NAME``), and its task.

    Cases with one ``task`` can be compared by time; ``setting`` is how each does it. The backend, a
    CUDA graph and the environment are beside its own settings. Where ``task`` is None the workload
    is compared with no other. ``any_ranks``: more or fewer ranks do the same."""

    axes: Mapping[str, Any]
    task: Mapping[str, Any] | None
    setting: Mapping[str, Any] = MappingProxyType({})
    any_ranks: bool = False


class Label(NamedTuple):
    """The name of what is run, one word (``all_reduce``), and the words of a case's label.

    Backend and device follow the first of the words."""

    name: str
    words: Sequence[str]


class Features(NamedTuple):
    """The needs and the behaviour of a workload; the defaults hold for most.

    Attributes:
        implementer: the library or method that runs it; empty: it has the workload's name.
        calls: the collectives that it calls on the backend.
        needs: what it needs of a machine beside backend and device: modules, ``compiler``.
        only_on: the devices that it runs on; none named: all that the backend has.
        least_capability: the least compute capability of a GPU of CUDA; (): any.
        least_multiprocessors: how many multiprocessors a GPU must have.
        cold_bytes: of the buffers of a call that takes turns over sets, so that none is in a cache;
            a GPU whose cache asks for too many sets cannot run it. 0: it does not.
        needs_ranks: only real ranks can run it: a library of its own connects them.
        reads_peers: ranks read each other's GPU memory, which not all GPUs can.
        selectors: the values by which keys of the sweep file, such as ``model``, select it.
        profiled_for: the targets of a profile (`config.axes.TARGETS`) that it shows.
        not_captured: why a CUDA graph cannot hold a call of it.
        compiled_graphs: how many graphs torch.compile makes when it is set up.
        drawn_numbers: how many random numbers a rank draws on its device when it is set up.
        dry_run_workload: the form that a dry run tries, if it is another.
        dry_run_calls: how often a dry run calls it; the last call is counted.
        has_result: a call leaves a result that can be checked.
        has_whole_samples: each rank sees samples of a batch from end to end, so that one can take
            longer.
        has_phases: durations of phases are recorded beside each sample.
        settles: calls that are not recorded follow each check of a result: they bring the caches
            back. Calls must be alike: none changes what the next one does.
        needs_all_ranks: no rank can end a call before all ranks have begun it.
        files: files that have what it runs: path -> `texts.file_hash`.
        enters_late: a sample is a call that ranks enter, so they can enter it late on purpose.
        is_for_time: it is measured for its time; runs are not compared by the times of others."""

    implementer: str = ""
    calls: tuple[Call, ...] = ()
    needs: tuple[str, ...] = ()
    only_on: tuple[str, ...] = ()
    least_capability: tuple[int, ...] = ()
    least_multiprocessors: int = 0
    cold_bytes: int = 0
    needs_ranks: bool = False
    reads_peers: bool = False
    selectors: Mapping[str, str] = MappingProxyType({})
    profiled_for: frozenset[str] = frozenset()
    not_captured: str | None = None
    compiled_graphs: int = 0
    drawn_numbers: int = 0
    dry_run_workload: Workload | None = None
    dry_run_calls: int = 1
    has_result: bool = True
    has_whole_samples: bool = False
    has_phases: bool = False
    settles: bool = False
    needs_all_ranks: bool = False
    files: Mapping[str, str] = MappingProxyType({})
    enters_late: bool = False
    is_for_time: bool = True


class Workload(ABC):
    """Base of the workloads of all kinds: a frozen dataclass of what a case runs.

    Its fields are plain JSON values or tuples of them. ``dtype`` is the element type, ``groups``
    how many equal groups of ranks, ``group_stride`` apart, run it at the same time
    (`units.equal_groups`). Values that a kind does not define are those given here."""

    __slots__ = ()

    dtype: str
    groups: int
    group_stride: int = 1
    origin: ClassVar[str] = ""
    """The field with the origin of the problem (``model layer``): cases that differ in it alone are
    one case."""

    @abstractmethod
    def label(self, world_size: int) -> Label:
        """Return its name, and the words of the label of a case on so many ranks."""

    @property
    def name(self) -> str:
        """Return the name of what is run, in one word."""
        return self.label(1).name

    @property
    def features(self) -> Features:
        """Return the features that the plan, the run and the checks need."""
        return Features()

    @property
    def implementer(self) -> str:
        """Return the library or method that runs it, for messages about what is missing."""
        return self.features.implementer or self.name

    def step_words(self, rank: int, world_size: int, step: int) -> str:
        """Return where in a sample a rank is in this step (`operations.place.Stepping`).

        0: outside of a sample's steps. "" where nothing is known."""
        return ""

    def next_try(self, tries: Sequence[Tried]) -> tuple[Workload, Mapping[str, Any]] | None:
        """Return the next run, by new workers, after these, and the JSON values that distinguish
        it; None: the case is done, or is one run. Pure: all ranks call it."""
        return None

    def choice(self) -> Choice:
        """Return the values that distinguish it, without derived ones, its task and its setting."""
        axes = self.to_json()
        return Choice(axes, axes)

    def to_json(self) -> dict[str, Any]:
        """Return its fields as plain JSON values."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class UnknownWorkload(Workload):
    """A workload of a kind that is not installed: kept as it was stored, and named as it was."""

    data: Mapping[str, Any]
    kind: str = "unknown"

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return str(self.data.get("dtype", ""))

    @property
    def groups(self) -> int:  # type: ignore[override]
        groups = self.data.get("groups", 1)
        return groups if isinstance(groups, int) else 1

    @property
    def group_stride(self) -> int:  # type: ignore[override]
        stride = self.data.get("group_stride", 1)
        return stride if isinstance(stride, int) else 1

    def label(self, world_size: int) -> Label:
        name = str(self.data.get("name", self.kind))
        plain = [f"{key}={value}" for key, value in self.data.items()
                 if isinstance(value, (str, int, float)) and key != "name"]
        return Label(name, [name, *plain, f"ranks={world_size}"])

    def choice(self) -> Choice:
        """Return no task: which of its values are settings is unknown."""
        return Choice(self.data, None)

    def to_json(self) -> dict[str, Any]:
        return dict(self.data)
