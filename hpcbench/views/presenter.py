"""Presenters turn cases, results and records of one kind into tables, charts and findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from hpcbench.kinds.registry import kinds

if TYPE_CHECKING:
    from hpcbench.plan.case import Case
    from hpcbench.plan.workload import Workload
    from hpcbench.reduce.results import CaseResult
    from hpcbench.views.chart import Chart, HeatMapCase, Look
    from hpcbench.views.table import Line, Table

    Items = Sequence[CaseResult]

W = TypeVar("W", bound="Workload")
R = TypeVar("R")


class Words(NamedTuple):
    """Short words for the span of several cases: ``what`` follows names, ``sizes`` the types.

    ``types`` are the element types, one a case; None for a case that moves no data."""

    what: Sequence[str] = ()
    types: Sequence[str | None] = ()
    sizes: Sequence[str] = ()


CountedCall = tuple[str, int, int]
"""A collective, how often it was called, and the bytes of all calls as nccl-tests sizes them."""


class Presenter(Generic[W, R]):
    """Turns cases, results and derived records of one kind into neutral objects (`views`).

    Whatever a kind does not present itself is shown as of any kind. ``derived`` are the kind's
    records by case id. ``fields`` names the columns that the kind has in summary.csv beside its
    metrics (`KindSpec.in_every_summary`). ``ranks_word`` stands before the number of ranks in short
    lines. ``part_looks`` is how parts of a sample look in all charts, by their names; ``""`` is
    time in none of them. ``W`` is the kind's workload, ``R`` its record. ``problem`` is why a
    plug-in's own presenter is not there."""

    fields: tuple[str, ...] = ()
    ranks_word = "ranks"
    part_looks: Mapping[str, Look] = MappingProxyType({})

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    def listing(self) -> Iterable[Line | Table]:
        """Yield the lines and tables of `hpcbench list` on what the kind can measure."""
        return ()

    def plan_table(
        self, title: str, cases: Sequence[Case], *, listed: bool, hardware: Mapping[str, Any],
    ) -> Table | None:
        """Return the cases of a block: ``listed`` one by one, else a row for cases that are alike.

        ``hardware`` is that section of the sweep. None: as those of any kind."""
        return None

    def dry_run_lines(self, work: W, calls: Sequence[CountedCall] | None) -> Iterable[str]:
        """Yield lines on a case that was tried; ``calls`` are rank 0's, None if it did not run."""
        return ()

    def words(self, works: Sequence[W]) -> Words:
        """Return short words for the span of several cases."""
        return Words(types=[work.dtype for work in works])

    def tables(self, title: str, items: Items, derived: Mapping[str, R]) -> Iterable[Table] | None:
        """Return the tables of one block's results; None: as those of any kind."""
        return None

    def overviews(
        self, items: Items, derived: Mapping[str, R],
    ) -> Iterable[Table | Chart | Line]:
        """Yield the overviews of all blocks, which stand below the tables of the blocks.

        They are tables; charts, to which the timing of their cases is added; and lines: highlights
        with a topic, meanings of columns without one."""
        return ()

    def profile(self, items: Items, derived: Mapping[str, R]) -> Iterable[Line | Table] | None:
        """Return findings, then tables of a profile, at most a screen; None: as of any kind."""
        return None

    def heat_map_case(self, case: Case) -> HeatMapCase | None:
        """Return the words of a heat map of the case's samples; None: its name, most ranks first.
        """
        return None

    def row(self, item: CaseResult, record: R | None) -> Mapping[str, Any]:
        """Return values of a case's row in summary.json and summary.csv, by field.

        Beside ``fields`` they may be of fields that all kinds have, or of metrics. ``record`` is
        None where there is none."""
        return {}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Sequence[CaseResult],
        derived: Mapping[str, R],
    ) -> Mapping[str, Any]:
        """Return the kind's parts of ``results`` in summary.json; rows and items correspond."""
        return {}


@cache
def presenter_of(kind: str) -> Presenter[Any, Any]:
    """Return the presenter of a kind, or that of any kind where it is not installed.

    Where a plug-in's presenter fails, that of any kind takes its place, with the reason."""
    spec = kinds().get(kind)
    return spec.guarded("presenter", spec.presenter_path, Presenter) if spec else Presenter()
