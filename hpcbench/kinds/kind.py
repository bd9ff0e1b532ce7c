"""What a kind of case is: four sides, each loaded only where it is needed.

- The planner turns blocks of a sweep file into cases. It imports neither torch nor numpy.
- The runner opens an operation in a worker. It is the only side that may import torch.
- The deriver computes records from results. It imports numpy at most.
- The presenter turns records into tables, charts and findings. It imports no plotting library.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from hpcbench.config.schema import Config
    from hpcbench.config.section import Block
    from hpcbench.operations.place import AnyOperation, Place
    from hpcbench.plan.case import Case
    from hpcbench.plan.points import PlanRequest
    from hpcbench.plan.workload import Workload
    from hpcbench.reduce.checks import Problem
    from hpcbench.reduce.kind_facts import CaseColumn, Fact, ReadSamples
    from hpcbench.reduce.results import CaseResult, CaseSamples
    from hpcbench.views.chart import Chart, HeatMapCase, Look
    from hpcbench.views.table import Line, Table

    Items = Sequence[CaseResult]

W = TypeVar("W", bound="Workload")
R = TypeVar("R")


class Words(NamedTuple):
    """Short words for what several cases span: ``what`` follows names, ``sizes`` the types.

    ``types`` are the element types, one a case; None of what moves no data.
    """

    what: Sequence[str] = ()
    types: Sequence[str | None] = ()
    sizes: Sequence[str] = ()


CountedCall = tuple[str, int, int]
"""A collective, how often it was called, and the bytes of all calls as nccl-tests sizes them."""


class Planner(ABC):
    """Plans the cases of one kind. One object serves one plan, so it may remember what it loads."""

    @abstractmethod
    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis but ``env``, without writing the product out."""

    @abstractmethod
    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point. Raises ConfigError that lists every unknown name."""

    def problems(self, block: Block) -> Iterator[str]:
        """Yield ``key: message`` of each name in a block that nothing has; `cases` refuses them.

        They are reported together with those of other blocks that are no blocks at all.
        """
        yield from ()

    @abstractmethod
    def workload_from_json(self, data: Mapping[str, Any]) -> Workload:
        """Rebuild a workload from `Workload.to_json`, also from that of earlier versions."""

    def merged(self, same: Sequence[Workload]) -> Workload:
        """Return the one workload that stands for several with one case id; the first."""
        return same[0]

    def advice(self, work: Workload, available_bytes: int) -> str:
        """Return what would fit into so much memory, in words; nothing where nobody knows."""
        return ""


class Runner(ABC):
    """Runs the cases of one kind in a worker."""

    @abstractmethod
    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        """Allocate a workload on this rank; if ``validate``, prove what must hold before it."""

    def around(
        self, work: Workload, device: Any, local_size: int,
    ) -> contextlib.AbstractContextManager[None]:
        """Return what surrounds set-up and measurement; it may say more of a lack of memory.

        ``device`` is a torch device; ``local_size`` ranks share the node.
        """
        return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class NothingDerived:
    """The record of a kind that derives nothing."""


class Deriver(ABC):  # noqa: B024  (a kind may derive nothing)
    """Computes the derived records of one kind from the results of a run.

    ``record`` is a frozen dataclass of JSON values in SI units: None where there is no number,
    never NaN. It is stored in results.h5; ``version`` grows when a formula changes. A record that
    compares ranks has a field ``comparisons``, a tuple of `reduce.comparison.Comparison`: those of
    all records of a report are one family of tests. ``columns`` are those that the kind adds to
    ``/cases`` of results.h5: all that one plots its results by.
    """

    record: type[Any] = NothingDerived
    version: int = 1
    columns: Sequence[CaseColumn] = ()

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return the ``record`` of each case of this kind by case id; cases may be left out.

        ``items`` are all cases of the kind; ``hardware`` is the section of the sweep file, and in
        ``measured`` what kinds measured of this machine (`measured`).
        """
        return {}

    def measured(
        self, items: Sequence[CaseResult], records: Mapping[str, Any],
    ) -> Mapping[str, Mapping[str, float]]:
        """Return what these cases tell of a device of this machine, for the records of others.

        ``flops``: device and dtype (``cpu fp32``) -> FLOP/s of a rank's product while all ranks
        work; ``memory``: device -> bytes/s of a rank; ``links`` and ``messages``: the key of
        `reduce.ceilings.link_key` -> bytes/s, and messages/s, between two ranks. What was not
        measured is left out.
        """
        return {}

    def observe(self, item: CaseResult, samples: CaseSamples) -> Mapping[str, Any]:
        """Return fields of the case's record that follow from its stamps; they replace `derive`'s.
        """
        return {}

    def settled(self, records: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the records without what their comparisons, which now say what holds, refuse."""
        return records

    def column_values(self, item: CaseResult, record: Any | None) -> Mapping[str, Any]:
        """Return the case's values of ``columns`` by name; None, or left out: it has none.

        ``record`` is None where there is none.
        """
        return {}

    def facts(
        self, item: CaseResult, record: Any | None, read: ReadSamples,
    ) -> Iterable[Fact]:
        """Yield what else is known of a case: the classes of `reduce.kind_facts`, each optional.

        ``record`` is None where there is none. ``read`` reads the samples of the case, which takes
        time; it gives None where nobody asks for what follows from them.
        """
        return ()

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterable[Problem]:
        """Yield what contradicts itself, the plan or the declared hardware in an ok case.

        ``item`` has no statistics yet, but its time, and in ``detail`` what its ranks recorded.
        ``nodes`` maps each rank to its machine; ``hardware`` is the section of the sweep file.
        """
        return ()

    def joint_problems(
        self, items: Sequence[CaseResult], records: Mapping[str, Any],
    ) -> Iterable[tuple[Case, Problem]]:
        """Yield what contradicts itself between cases, with the case that it is told of.

        Both have their times by then. What ``rejects`` leaves them, but makes the run one with bad
        findings.
        """
        return ()


class Presenter(Generic[W, R]):
    """Turns cases, results and derived records of one kind into neutral objects (`views`).

    Whatever a kind does not present itself is shown as of any kind. ``derived`` are the kind's
    records by case id. ``fields`` names the columns that the kind adds to summary.csv; in a run
    without its cases only where it is ``in_every_summary``. ``ranks_word`` stands before the number
    of ranks in short lines. ``part_looks`` is how parts of a sample look in all charts, by their
    names; of what is in none of them by ``""``. ``W`` is the kind's workload, ``R`` its record.
    ``problem`` says why a plug-in's own presenter is not there.
    """

    fields: tuple[str, ...] = ()
    in_every_summary = True
    ranks_word = "ranks"
    part_looks: Mapping[str, Look] = MappingProxyType({})

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    def listing(self) -> Iterable[Line | Table]:
        """Yield what `hpcbench list` says of the kind: what can be measured."""
        return ()

    def plan_table(self, title: str, cases: Sequence[Case], *, listed: bool) -> Table | None:
        """Return the cases of a block: ``listed`` one by one, else a row for cases that are alike.

        None: as those of any kind.
        """
        return None

    def dry_run_lines(self, work: W, calls: Sequence[CountedCall] | None) -> Iterable[str]:
        """Yield what is known of a case that was tried; ``calls`` are rank 0's, if it ran."""
        return ()

    def words(self, works: Sequence[W]) -> Words:
        """Return short words for what several cases span."""
        return Words(types=[work.dtype for work in works])

    def definitions(self, items: Items, derived: Mapping[str, R]) -> Iterable[str]:
        """Yield what the columns of the tables of these cases mean."""
        return ()

    def tables(self, title: str, items: Items, derived: Mapping[str, R]) -> Iterable[Table] | None:
        """Return the tables of one block's results; None: as those of any kind."""
        return None

    def overviews(self, items: Items, derived: Mapping[str, R]) -> Iterable[Table]:
        """Yield tables of the results of all blocks, which stand below those of the blocks."""
        return ()

    def profile(self, items: Items, derived: Mapping[str, R]) -> Iterable[Line | Table] | None:
        """Return findings, then tables of a profile, at most a screen; None: as of any kind."""
        return None

    def charts(self, items: Items, derived: Mapping[str, R]) -> Iterable[Chart]:
        """Yield the charts of the results of all blocks; how they were timed is added to them."""
        return ()

    def heat_map_case(self, case: Case) -> HeatMapCase | None:
        """Return what a heat map of the case's samples says; None: its name, most ranks first."""
        return None

    def row(self, item: CaseResult, record: R | None) -> Mapping[str, Any]:
        """Return values of a case's row in summary.json and summary.csv, by field.

        Beside ``fields`` they may be of fields that all kinds have. ``record`` is None where there
        is none.
        """
        return {}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Sequence[CaseResult],
        derived: Mapping[str, R],
    ) -> Mapping[str, Any]:
        """Return what the kind adds to ``results`` of summary.json; rows and items correspond."""
        return {}
