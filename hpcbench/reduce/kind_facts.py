"""Facts that a kind knows of a case beyond its record (`reduce.kind_facts.Deriver.facts`).

The columns of ``/cases`` in results.h5: those of all kinds, and those that each kind states."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from hpcbench.errors import PluginError
from hpcbench.kinds.registry import KindSpec, kinds
from hpcbench.operations.traffic import CallForm
from hpcbench.plan.case import STATUSES
from hpcbench.records import dataclass
from hpcbench.reduce import results
from hpcbench.reduce.checks import Violation
from hpcbench.reduce.comparison import Comparison
from hpcbench.reduce.metric import Metric, metric, whole, word
from hpcbench.registry import in_this_package
from hpcbench.statistics.overlap import OverPasses

BEFORE_THE_CALL = "before the call"
"""The phase of a rank that starts a call late."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """One check of the ranks of a case for a straggler. ``comparison`` is of the moments from which
    on a rank does not delay the others; ``phase`` has most of the delay, and is ``phase_s`` longer
    than on others. ``missing``: why there is no comparison."""

    comparison: Comparison | None = None
    phase: str = ""
    phase_s: float = 0.0
    missing: str = ""


OWN_WORK, EXCHANGE = "own work", "exchange"
"""The time that a rank takes by itself; and that from when all ranks are ready to exchange."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How the exchange of a case varies between calls (``cv``) beside the work before it
    (``own_cv``). ``share``: mean deviation of the exchange over a call; ``chance``: p-value;
    ``is_high``: significant."""

    cv: float
    own_cv: float
    share: float
    chance: float
    is_high: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The ``share`` of a call that ranks wait for the slowest one, None if unknown, with its 95 %
    interval. ``missing``: why a part of it is not known."""

    share: float | None = None
    low: float | None = None
    high: float | None = None
    variation: Variation | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class RankWork:
    """How long each rank takes for a part of a call without waiting. ``times_s`` are (rank, pass);
    ranks with equal numbers in ``alike`` have equal work, ``group`` names what they share.
    ``ready_s``: when each rank is ready to exchange; empty for OWN_WORK."""

    what: str
    ranks: tuple[int, ...]
    times_s: tuple[tuple[float, ...], ...]
    alike: tuple[int, ...]
    group: str = ""
    ready_s: tuple[tuple[float, ...], ...] = ()


SAMPLES = "samples"
"""The unit of trainings, by which their cost is counted."""


@dataclass(frozen=True, slots=True)
class CallWork:
    """The work of one call (of a training: a step). ``task`` is equal in cases that do the same on
    any number of ranks, ``way`` how it is divided, in words. ``amount`` is of all ranks, in
    ``unit``: samples, rows or bytes. ``alone``: why it is the one-rank base of all ways.
    ``only_communicates``: more ranks do not share its work; ``size`` is its extent in words.
    ``communication``: the share that it adds to a call."""

    task: tuple[object, ...]
    title: str
    way: str
    amount: float
    unit: str
    tokens: int | None = None
    alone: str = ""
    only_communicates: bool = False
    size: str = ""
    communication: OverPasses | None = None


@dataclass(frozen=True, slots=True)
class PairRates:
    """Rates from every rank (row) to every other (column), None if not measured. ``each_way``: both
    directions were measured apart. ``passes``: those of each pass, where samples were read.
    ``missing``: why links are not comparable."""

    rates: tuple[tuple[float | None, ...], ...] = ()
    passes: tuple[tuple[tuple[float | None, ...], ...], ...] = ()
    each_way: bool = True
    missing: str = ""


@dataclass(frozen=True, slots=True)
class RankRates:
    """A rate of each rank by itself, of equal work; more is better. ``passes``: those of each pass
    in which all have one, where samples were read."""

    rates: tuple[float, ...]
    passes: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SentBytes:
    """The bytes that all ranks of a case together send in one call, by formulas."""

    count: float


@dataclass(frozen=True, slots=True)
class IsolatedCall:
    """The one collective that a case calls, and its bytes as a sweep file has them."""

    form: CallForm
    size_bytes: int


@dataclass(frozen=True, slots=True)
class IsolatedForm:
    """The one recorded form of calls (`operations.traffic.form_id`) that a case issues alone, and
    the ranks that issue it."""

    form_id: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RepeatedCall:
    """Calls of one collective in groups of ``ranks`` that are ``stride`` apart: how many of a rank,
    and their mean size in bytes as nccl-tests counts it."""

    collective: str
    ranks: int
    stride: int
    number: float
    size_bytes: float


@dataclass(frozen=True, slots=True)
class StepDemand:
    """What the busiest rank of a case does in one call, or step: FLOPs, and collectives; or
    ``missing``, why no plan can know that."""

    flops: float
    calls: tuple[RepeatedCall, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class MachineRate:
    """A rate of this machine that a case measured, and that records of other cases refer to.

    Attributes:
        limit: ``flops`` (a rank's product, while all ranks work, in FLOP/s), ``memory`` (of a rank,
            in bytes/s), ``links`` or ``messages`` (between two ranks, in bytes/s, in messages/s).
        name: device and dtype (``cpu fp32``); the device; the key of `reduce.roofline.link_key`.
        ranks: how many ranks worked concurrently.
        cached: it may be that of a cache, so it counts only where there is no other."""

    limit: str
    name: str
    ranks: int
    rate: float
    cached: bool = False


ReadSamples = Callable[[], results.CaseSamples | None]
Fact = (SentBytes | CallWork | Lateness | Waiting | RankWork | PairRates | RankRates | MachineRate
        | IsolatedCall | IsolatedForm | StepDemand | Violation)
F = TypeVar("F", SentBytes, CallWork, Lateness, Waiting, RankWork, PairRates, RankRates,
            IsolatedCall, IsolatedForm, StepDemand)


def facts_of(
    item: results.CaseResult, record: Any | None, wanted: type[F],
    read: ReadSamples = lambda: None,
) -> tuple[F, ...]:
    """Return the facts of one class that a case's kind knows; a plug-in's fault costs only them."""
    spec = kinds().get(item.case.kind)
    if spec is None:
        return ()
    try:
        facts = deriver_of(spec).facts(item, record, read)
        return tuple(fact for fact in facts if isinstance(fact, wanted))
    except Exception:
        if in_this_package(spec.deriver_path):
            raise
        return ()


CaseColumn = Metric
"""The name that plug-ins have for it."""


def columns_of(record: type[Any]) -> tuple[Metric, ...]:
    """Return a column for each field of a record that is annotated with its meaning."""
    hints = get_type_hints(record, include_extras=True).items()
    return tuple(_column(name, *get_args(hint)) for name, hint in hints
                 if get_origin(hint) is Annotated)


def _column(name: str, annotated: Any, text: str, *apart: str) -> Metric:
    types = {annotated, *get_args(annotated)}
    if float in types:
        return metric(name, text, apart=bool(apart))
    return (whole if types & {int, bool} else word)(name, text)


OF_CASE = (
    word("case_id", "id of the case: hash of what it runs"),
    word("label", "name of the case in one line"),
    word("kind", "kind of the case"),
    word("block", "title of its block in the sweep file"),
    word("backend", "backend of the case"),
    word("mode", "timing mode: isolated, pipelined or barrier_start"),
    whole("world_size", "ranks that take part: the first ones of the job"),
    whole("warmup", "warm-up samples of each pass"),
    whole("iterations", "timed samples of each pass, or their limit"),
    whole("batch", "calls of a sample in the plan"),
    whole("validate", "1 if results are checked, else 0"),
    whole("checks", "calls checked after the timed ones; -1: every sample is"),
    whole("cuda_graph", "1 if a call is the replay of a CUDA graph, else 0"))
OF_RESULT = (
    word("status", f"how it ended: {', '.join(STATUSES)}"),
    word("device", "where it ran, or was to run"),
    word("env", "its environment variables: NAME=VALUE, separated by spaces"),
    word("dtype", "element type"))
COUNTS = (
    whole("groups", "concurrent groups of ranks"),
    whole("n", "samples in the statistics; 0 of a case that is not ok"),
    whole("ci_reliable", "1 if the interval is reliable, else 0"),
    whole("n_wrong", "wrong elements of all ranks; -1 if nothing was checked"),
    whole("blamed_rank", "rank that caused a failure; -1 of none"))
TIMES, OF_TIMING, OF_USAGE = map(columns_of, (results.Statistics, results.Timing, results.Usage))
BLOCK = (
    whole("sample_offset", "first row of its samples in /samples; -1 of none", "rows"),
    whole("sample_ranks", "ranks with samples"),
    whole("sample_iterations", "samples of each rank; rows are sample_ranks x sample_iterations"))
"""The columns of results.h5 alone."""
CASE_COLUMNS = (*OF_CASE, *OF_RESULT, *COUNTS, *TIMES, *OF_TIMING, *OF_USAGE)
COLUMNS = (*CASE_COLUMNS, *BLOCK)
"""The columns that cases of all kinds have."""
OF_ARRIVALS = (
    word("arrival", "together, or who enters late by how much: last:250us"),
    *columns_of(results.LateArrivals))
"""The columns of runs in which ranks enter late on purpose."""


def _stated(name: str) -> Callable[[results.CaseResult], Any]:
    """Return how a number follows that a program states of a call: its bytes or flops."""
    return lambda item: item.case.workload.to_json().get(name)


def _stated_per_s(name: str) -> Callable[[results.CaseResult], float | None]:
    def rate(item: results.CaseResult) -> float | None:
        stated, stats = _stated(name)(item), item.statistics
        return stated / stats.median_s if stated is not None and stats and stats.median_s else None
    return rate


OF_PROGRAMS = (
    metric("call_bytes", "of a call, as the program states", of=_stated("bytes")),
    metric("call_flops", "of a call, as the program states", "FLOP", of=_stated("flops")),
    metric("call_bytes_per_s", "call_bytes / median_s", of=_stated_per_s("bytes")),
    metric("call_flops_per_s", "call_flops / median_s", of=_stated_per_s("flops")))
"""The columns of what `hpcbench.measure` saved."""
LINES_OF_CASES = ("detail", "timing", "phases", "usage")
"""Datasets of ``/cases`` that are JSON."""
Row = dict[str, Any]


def row_of(item: results.CaseResult) -> Row:
    """Return the values of CASE_COLUMNS."""
    case, stats, timing = item.case, item.statistics, item.timing
    row: Row = {column.name: getattr(case, column.name) for column in OF_CASE}
    row |= {column.name: getattr(stats, column.name, None) for column in (*COUNTS, *TIMES)}
    row |= {column.name: getattr(timing, column.name, None) for column in OF_TIMING}
    row |= {column.name: getattr(item.usage, column.name, None) for column in OF_USAGE}
    return row | {
        "status": item.status, "device": item.device or case.device,
        "env": settings(case.env),
        "dtype": case.workload.dtype, "groups": case.workload.groups,
        "n": stats.n if stats else 0, "ci_reliable": stats is not None and stats.ci_reliable,
        "n_wrong": item.n_wrong, "blamed_rank": item.blamed_rank}


def settings(pairs: Iterable[tuple[str, object]]) -> list[str]:
    return [f"{name}={value}" for name, value in pairs]


class Deriver(ABC):  # noqa: B024  (a kind may derive nothing)
    """Computes the derived numbers of one kind from the results of a run.

    ``columns`` declare what the kind adds to ``/cases`` of results.h5: what `derive` computes, and
    what follows from a case alone (`Metric.of`). They are written once and read back; ``version``
    grows when a formula changes. The value of ``comparisons``, a JSON column, is a tuple of
    `reduce.comparison.Comparison`: those of all cases of a report are one family of tests.
    A kind that ``measures`` yields `MachineRate`s; it is derived before others."""

    version: int = 1
    columns: Sequence[Metric] = ()
    measures = False

    def derive(
        self, items: Sequence[results.CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Return the values of each case of this kind by case id; cases and values may be left out.

        ``items`` are all cases of the kind; ``hardware`` is the section of the sweep file, and in
        ``measured`` the rates measured of this machine (`reduce.roofline.machine_rates`)."""
        return {}

    def observe(self, item: results.CaseResult, samples: results.CaseSamples) -> Mapping[str, Any]:
        """Return values that follow from stamps; they replace `derive`'s."""
        return {}

    def settled(self, values: Any, of_kind: Mapping[str, Any]) -> Any:
        """Return the values of a case without what its ``comparisons`` refuse, now that it is known
        which of them hold; ``of_kind`` are those of all cases."""
        return values

    def facts(
        self, item: results.CaseResult, record: Any | None, read: ReadSamples,
    ) -> Iterable[Fact]:
        """Yield further facts of a case: the classes of `reduce.kind_facts`, each optional.

        A `Violation` reports that the case contradicts other cases. All have their times by then,
        and keep them; one that ``rejects`` makes the run one with bad findings.
        ``record`` is None where there is none. ``read`` reads the samples of the case, which takes
        time; it gives None where facts that follow from them are not wanted."""
        return ()

    def problems(
        self, item: results.CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterable[Violation]:
        """Yield contradictions of an ok case to itself, the plan or the declared hardware. ``item``
        has no statistics yet; ``nodes`` maps each rank to its machine."""
        return ()


def deriver_of(spec: KindSpec) -> Deriver:
    """Return a new deriver. Raises PluginError if it cannot be loaded."""
    return spec.made(spec.deriver_path)  # type: ignore[no-any-return]


def metrics_of(kind: str) -> Sequence[Metric]:
    """Return the metrics of a kind; none where it is not installed, or cannot be loaded."""
    try:
        return deriver_of(kinds()[kind]).columns
    except (KeyError, PluginError):
        return ()
