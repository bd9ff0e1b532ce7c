"""What a kind of case is: four sides, each loaded only where it is needed.

- The planner turns blocks of a sweep file into cases. It imports neither torch nor numpy.
- The runner opens an operation in a worker. It is the only side that may import torch.
- The deriver computes records from results. It imports numpy at most.
- The presenter turns records into tables, charts and findings. It imports no plotting library.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hpcbench.errors import PluginError

if TYPE_CHECKING:
    from hpcbench.config.block import Block
    from hpcbench.config.schema import Config
    from hpcbench.operations.operation import AnyOperation
    from hpcbench.operations.place import Place
    from hpcbench.plan.case import Case
    from hpcbench.plan.points import PlanRequest
    from hpcbench.plan.workload import Workload
    from hpcbench.reduce.checks import Problem
    from hpcbench.reduce.results import CaseResult, CaseSamples
    from hpcbench.views.chart import Chart, HeatMapCase
    from hpcbench.views.table import Line, Table

    Items = Sequence[CaseResult]

W = TypeVar("W", bound="Workload")
R = TypeVar("R")
S = TypeVar("S")
CountedCall = tuple[str, int, int]
"""A collective, how often it was called, and the bytes of all calls as nccl-tests sizes them."""
_UNUSABLE = "hpcbench.kinds.unusable:Unusable"


class Planner(ABC):
    """Plans the cases of one kind. One object serves one plan, so it may remember what it loads."""

    @abstractmethod
    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis but ``env``, without writing the product out."""

    @abstractmethod
    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point. Raises ConfigError that lists every unknown name."""

    @abstractmethod
    def workload_from_json(self, data: Mapping[str, Any]) -> Workload:
        """Rebuild a workload from `Workload.to_json`, also from that of earlier versions."""

    def merged(self, same: Sequence[Workload]) -> Workload:
        """Return the one workload that stands for several with one case id; the first."""
        return same[0]

    def advice(self, work: Workload, available_bytes: int) -> str:
        """Return what would fit into so much memory, in words; nothing where nobody knows."""
        return ""

    def canary(self, world_size: int, timeout_s: float, wakeup_s: float) -> Case | None:
        """Return a small case that shows drift of the machine; None: this kind offers none."""
        return None


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

    def stray(self, work: Workload, place: Place) -> AnyOperation | None:
        """Return another collective than ``work`` plans, for tests; None: this kind has none."""
        return None


@dataclass(frozen=True, slots=True)
class NothingDerived:
    """The record of a kind that derives nothing."""


class Deriver(ABC):  # noqa: B024  (a kind may derive nothing)
    """Computes the derived records of one kind from the results of a run.

    ``record`` is a frozen dataclass of JSON values in SI units: None where there is no number,
    never NaN. It is stored in results.h5; ``version`` grows when a formula changes.
    """

    record: type[Any] = NothingDerived
    version: int = 1

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return the ``record`` of each case of this kind by case id; cases may be left out.

        ``items`` are all cases of the kind; ``hardware`` is the section of the sweep file.
        """
        return {}

    def observe(self, item: CaseResult, samples: CaseSamples) -> Mapping[str, Any]:
        """Return fields of the case's record that follow from its stamps; they replace `derive`'s.
        """
        return {}

    def problems(
        self, case: Case, time_s: float, nodes: Mapping[int, str], hardware: Mapping[str, Any],
    ) -> Iterable[Problem]:
        """Yield what contradicts itself or the declared hardware in the time of an ok case.

        ``nodes`` maps each rank to its machine; ``hardware`` is the section of the sweep file.
        """
        return ()


class Presenter(Generic[W, R]):
    """Turns cases, results and derived records of one kind into neutral objects (`views`).

    Whatever a kind does not present itself is shown as of any kind. ``derived`` are the kind's
    records by case id. ``fields`` names the columns that the kind adds to summary.csv;
    ``ranks_word`` stands before the number of ranks in short lines. ``W`` is the kind's workload,
    ``R`` its record. ``problem`` says why a plug-in's own presenter is not there.
    """

    fields: tuple[str, ...] = ()
    ranks_word = "ranks"

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

    def type_word(self, work: W) -> str | None:
        """Return the element type; None of what moves no data."""
        return work.dtype

    def span_words(self, works: Sequence[W]) -> Iterable[str]:
        """Yield short words for what several cases span; they follow their names."""
        return ()

    def size_words(self, works: Sequence[W]) -> Iterable[str]:
        """Yield short words for the sizes of several cases; they follow their types."""
        return ()

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


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A kind of case: its names, and where its block and its sides are, as ``module:object``.

    ``aliases`` are other names in sweep files. Kinds are listed by ``order``, then by name. Making
    one imports nothing. ``problem`` says why a plug-in's kind cannot be used; stand-ins then make
    its cases skips. ``catalogue_path``'s function gives group -> name -> facts, as JSON values.
    """

    name: str
    block: str
    planner_path: str
    runner_path: str
    deriver_path: str
    presenter_path: str
    aliases: tuple[str, ...] = ()
    order: int = 100
    problem: str = ""
    catalogue_path: str = ""

    @property
    def is_plugin(self) -> bool:
        """Return whether the kind, by its planner, is another package's."""
        return not in_this_package(self.planner_path)

    def block_class(self) -> type[Block]:
        """Return the class of the kind's blocks in sweep files."""
        try:
            return self._checked_block()
        except PluginError:
            return _load("hpcbench.config.block:UnusableBlock")  # type: ignore[no-any-return]

    def planner(self) -> Planner:
        """Return a new planner; that of a plug-in is guarded, so that it costs its cases only."""
        try:
            self._checked_block()
            planner = self._made(self.planner_path, Planner)  # type: ignore[type-abstract]
            return _load("hpcbench.plan.unusable:GuardedPlanner")(
                self.name, planner) if self.is_plugin else planner
        except PluginError as error:
            return _load("hpcbench.plan.unusable:UnusablePlanner")(  # type: ignore[no-any-return]
                self.name, str(error))

    def runner(self) -> Runner:
        """Return a new runner; this imports torch."""
        return self._made(self.runner_path, Runner, f"{_UNUSABLE}Runner")  # type: ignore[type-abstract]

    def deriver(self) -> Deriver:
        """Return a new deriver."""
        return self._made(self.deriver_path, Deriver, f"{_UNUSABLE}Deriver")

    def presenter(self) -> Presenter[Any, Any]:
        """Return a new presenter; that of a plug-in is guarded: it costs its own tables only."""
        make = partial(self._made, self.presenter_path, Presenter, "hpcbench.kinds.kind:Presenter")
        return make() if in_this_package(self.presenter_path) else _load(
            "hpcbench.views.guarded:GuardedPresenter")(make)

    def catalogue(self, read: Callable[[Any], S]) -> S | None:
        """Return what ``read`` makes of ``catalogue_path``'s function. Raises PluginError."""
        return self._load(self.catalogue_path, read) if self.catalogue_path else None

    def _checked_block(self) -> type[Block]:
        block = self._load(self.block)
        if not self.is_plugin:
            return block  # type: ignore[no-any-return]
        try:
            if issubclass(block, _load("hpcbench.config.block:Block")):
                block.model_rebuild()  # what its annotations name may not be there
                return block  # type: ignore[no-any-return]
            problem = "no subclass of Block"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        raise PluginError(f"{self.block} cannot be used: {problem}")

    def _made(self, path: str, side: type[S], stand_in: str = "") -> S:
        """Return a new object of a class, or of ``stand_in`` where a plug-in is at fault.

        Raises PluginError with the reason where nothing stands in.
        """
        try:
            made = self._load(path, lambda factory: factory())
            if not isinstance(made, side):
                raise PluginError(f"{path} cannot be used: it is no {side.__name__}")
            return made
        except PluginError as error:
            if not stand_in:
                raise
            return _load(stand_in)(str(error))  # type: ignore[no-any-return]

    def _load(self, path: str, use: Callable[[Any], Any] = lambda found: found) -> Any:
        """Return what a path names, used. Raises PluginError if a plug-in is at fault."""
        if self.problem:
            raise PluginError(self.problem)
        try:
            return use(_load(path))
        except (Exception, SystemExit) as error:
            if not self.is_plugin:
                raise
            reason = f"{type(error).__name__}: {error}"
            raise PluginError(f"{path} cannot be loaded: {reason}") from error


def in_this_package(path: str) -> bool:
    """Return whether a ``module:name`` is ours, so that what it raises is no fault of a plug-in."""
    return path.startswith("hpcbench.")


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
