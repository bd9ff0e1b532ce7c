"""The cost of training: time, money and energy, on each choice of ranks and strategy.

time = samples / (samples in a second); device-hours = time x nodes x devices a node; cost =
device-hours x price of a device-hour. A rank has a device of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.analysis.scaling_series import (
    BY_PAIRS,
    MEANS_BY_PAIRS,
    Worked,
    caveats,
    compared,
    scaled,
    short_ways,
    worked,
)
from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    interval_text,
    range_of,
    with_command,
)
from hpcbench.answers.compare import FASTER, SAME, SLOWER, CaseComparison
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import SAMPLES
from hpcbench.statistics.order import Interval
from hpcbench.units import HOUR_S, digits, format_seconds, grouped, plural, three_digits
from hpcbench.views.chart import Axis, ChartPoint, LineChart, Panel, file_name
from hpcbench.views.chart import Curve as TimeSeries
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class CostChoice:
    """One way to train the samples.

    Attributes:
        way: the setting, without its ranks; ``batch`` are the samples of its step.
        time_s, device_hours, cost, kwh: for all samples; the last two None where unknown.
        price: of a device-hour.
        energy_of: the devices whose counters give the energy; ``power_w`` is their mean power
            during the case.
        setup_s: to open the group and for the first call, as measured; None if unknown.
        tokens_a_sample: None for images.
        on_front: whether no other choice is both faster and cheaper.
        shares_cores: whether its ranks are known to share cores.
        time_beside, cost_beside: over those of the default; None for the default itself."""

    case_id: str
    label: str
    way: str
    batch: float
    ranks: int
    nodes: int
    samples_per_s: float
    time_s: float
    device_hours: float
    price: float | None = None
    cost: float | None = None
    kwh: float | None = None
    power_w: float | None = None
    energy_of: str = ""
    setup_s: float | None = None
    tokens_a_sample: float | None = None
    on_front: bool = False
    shares_cores: bool = False
    time_beside: Interval | None = None
    cost_beside: Interval | None = None

    @property
    def spent(self) -> float:
        return self.device_hours if self.cost is None else self.cost


@dataclass(frozen=True, slots=True)
class Best:
    """The best choices by one measure: all that are not clearly worse, the best first.

    ``alike``: they are the same within the smallest effect, not merely undecided."""

    labels: tuple[str, ...]
    alike: bool
    in_launch: bool


@dataclass(frozen=True, slots=True)
class RanksStep:
    """The step from one number of ranks to the next: its savings, and their cost.

    Attributes:
        time: over that of fewer ranks, with its interval; ``verdict`` is that of
            `compare`. ``in_launch``: it is by pairs of a pass.
        from_samples: from so many samples on it is faster, set-up included; None if it is not, or
            set-up is not known.
        hour_saved: cost of each hour that it saves, in the unit of the task; None if none is."""

    first: str
    second: str
    more_nodes: int
    time: Interval
    verdict: str
    from_samples: int | None
    hour_saved: float | None
    in_launch: bool = False


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """All choices of one training; the default is the first planned one.

    ``unit`` is that of costs: a currency, or device-hours."""

    title: str
    unit: str
    samples: int
    choices: tuple[CostChoice, ...]
    default: str
    fastest: Best
    cheapest: Best
    steps: tuple[RanksStep, ...]


def task_of(cases: Sequence[Worked], options: TopicOptions) -> TrainingTask:
    """Return the task of ``cases``, of which there is at least one."""
    ways = short_ways(cases)
    choices = [_choice(case, options, label, ways[case.work.way]) for case, label in zip(
        cases, _labels(cases, ways), strict=True)]
    priced = all(one.cost for one in choices)
    if not priced:  # one unit for all
        choices = [replace(one, price=None, cost=None) for one in choices]

    def spent(case: Worked) -> float:
        price = _price(case, options) if priced else None
        return case.ranks * (price or 1.0) / case.work.amount

    first, *others = cases
    times, costs = (_ratios(first, others, measure) for measure in (_a_sample, spent))
    choices[1:] = [replace(choice, time_beside=time.interval, cost_beside=cost.interval)
                   for choice, time, cost in zip(choices[1:], times, costs, strict=True)]
    currencies = {_hardware(case).get("currency") for case in cases} - {None}
    unit = str(currencies.pop()) if len(currencies) == 1 else "currency units"
    return TrainingTask(
        first.title, unit if priced else "device-hours", options.samples,
        tuple(replace(one, on_front=not any(_beats(other, one) for other in choices))
              for one in choices),
        choices[0].label, _best(cases, choices, _a_sample), _best(cases, choices, spent),
        tuple(_steps(cases, choices)))


def _beats(one: CostChoice, other: CostChoice) -> bool:
    """Return whether one choice is as good in time and cost, and better in either."""
    mine, its = (one.time_s, one.spent), (other.time_s, other.spent)
    return mine != its and mine[0] <= its[0] and mine[1] <= its[1]


def _labels(cases: Sequence[Worked], names: Mapping[Any, str]) -> list[str]:
    """Return the way of each case, with its ranks and samples where the cases differ in them."""
    alone = len(cases) == 1
    on_ranks = alone or len({case.ranks for case in cases}) > 1
    of_step = alone or len({case.work.amount for case in cases}) > 1
    labels = [names[case.work.way] + (f" on {plural(case.ranks, 'rank')}" if on_ranks else "")
              + (f", {digits(case.work.amount, 6)} samples a step" if of_step else "")
              for case in cases]
    return [f"{label} ({case.case.case_id})" if labels.count(label) > 1 else label
            for label, case in zip(labels, cases, strict=True)]


def _hardware(case: Worked) -> Mapping[str, Any]:
    found: Mapping[str, Any] = case.run.results.plan.config.get("hardware") or {}
    return found


def _price(case: Worked, options: TopicOptions) -> float | None:
    """Return the price of the options, else the price that the sweep file gives for this device."""
    hardware = _hardware(case)
    if options.price is not None:
        return options.price
    if hardware.get("device_type") not in (None, case.device):
        return None
    price = hardware.get("price_per_device_hour")
    return None if price is None else float(price)


def _choice(case: Worked, options: TopicOptions, label: str, way: str) -> CostChoice:
    rate = case.work.amount / case.time_s
    time_s, price, usage = options.samples / rate, _price(case, options), case.item.usage
    hours = time_s * case.ranks / HOUR_S
    power_w = usage.mean_power_w if usage is not None else None
    timing = case.item.timing
    setup = [timing.communicator_s, timing.first_call_s] if timing else []
    return CostChoice(
        case.case.case_id, label, way, case.work.amount, case.ranks, case.nodes, rate, time_s,
        hours, price, None if price is None else hours * price,
        None if power_w is None else power_w * time_s / J_PER_KWH, power_w,
        usage.energy_of if usage is not None else "",
        sum(part for part in setup if part is not None) if any(setup) else None,
        case.work.tokens / case.work.amount if case.work.tokens else None,
        shares_cores=case.shares_cores)


def _a_sample(case: Worked) -> float:
    return 1 / case.work.amount


def _ratios(
    first: Worked, others: Sequence[Worked], measure: Callable[[Worked], float],
) -> list[CaseComparison]:
    base = scaled(first, measure(first))
    return compared([(base, scaled(other, measure(other))) for other in others])


def _best(
    cases: Sequence[Worked], choices: Sequence[CostChoice], measure: Callable[[Worked], float],
) -> Best:
    """Return the choice with the least time or cost of a sample, and those that may be as good."""
    order = sorted(range(len(cases)), key=lambda at: (
        cases[at].time_s * measure(cases[at]), choices[at].time_s))
    best, *others = order
    ratios = _ratios(cases[best], [cases[at] for at in others], measure)
    near = [(at, one) for at, one in zip(others, ratios, strict=True) if one.verdict != SLOWER]
    return Best(
        (choices[best].label, *(choices[at].label for at, _ in near)),
        all(one.verdict == SAME for _, one in near) and bool(near),
        any(one.in_launch for one in ratios))


def _steps(cases: Sequence[Worked], choices: Sequence[CostChoice]) -> list[RanksStep]:
    """Return the steps between neighbouring numbers of ranks, by the fastest choice on each."""
    fastest: dict[int, int] = {}
    for at, choice in enumerate(choices):
        fewer = fastest.get(choice.ranks)
        if fewer is None or choice.time_s < choices[fewer].time_s:
            fastest[choice.ranks] = at
    order = [fastest[ranks] for ranks in sorted(fastest)]
    pairs = [*zip(order, order[1:], strict=False)]
    comparisons = compared([(scaled(cases[few], _a_sample(cases[few])),
                             scaled(cases[many], _a_sample(cases[many]))) for few, many in pairs])
    return [_step(choices[few], choices[many], one)
            for (few, many), one in zip(pairs, comparisons, strict=True)]


def _step(few: CostChoice, many: CostChoice, tested: CaseComparison) -> RanksStep:
    from_samples = hour_saved = None
    if tested.verdict == FASTER:
        hour_saved = (many.spent - few.spent) / ((few.time_s - many.time_s) / HOUR_S)
        if few.setup_s is not None and many.setup_s is not None:
            a_sample = 1 / few.samples_per_s - 1 / many.samples_per_s
            from_samples = max(int((many.setup_s - few.setup_s) / a_sample) + 1, 1)
    return RanksStep(few.label, many.label, many.nodes - few.nodes, tested.interval, tested.verdict,
                     from_samples, hour_saved, tested.in_launch)


PRICE = "use --price or hardware.price_per_device_hour"


@dataclass(frozen=True, slots=True)
class Costs:
    """The record of the topic: the costs of the trainings of one or several runs, by task."""

    answers: tuple[Answer, ...]
    samples: int
    tasks: tuple[TrainingTask, ...]


def cost(runs: Sequence[Run], options: TopicOptions) -> Costs:
    """Return the cost of ``options.samples`` on each choice. Times are without set-up."""
    cases = [case for case in worked(runs) if case.work.unit == SAMPLES]
    tasks = tuple(task_of(same, options) for same in grouped(
        (case.key, case) for case in cases).values())
    flags = ("--price", f"{options.price:g}") if options.price is not None else ()
    if options.samples != TopicOptions().samples:
        flags = (*flags, "--samples", str(options.samples))
    answers = [replace(one, sentence=f"{task.title}: {one.sentence}", subject=task.title)
               for task in tasks for one in _answers_of_task(task)]
    if not tasks:
        answers = [cannot_tell("cost of training", "no training was timed")]
    answers += _without(runs, tasks)
    return Costs(with_command(answers, runs, "cost", *flags, beside=caveats(runs)),
                 options.samples, tasks)


def arithmetic(task: TrainingTask, choice: CostChoice) -> str:
    even = choice.ranks % choice.nodes == 0
    devices = (f"{plural(choice.nodes, 'node')} x {plural(choice.ranks // choice.nodes, 'device')}"
               if even else f"{plural(choice.ranks, 'device')} of {plural(choice.nodes, 'node')}")
    text = (f"{task.samples:,} samples / {digits(choice.samples_per_s, 4)} a second = "
            f"{digits(choice.time_s, 4)} s; {digits(choice.time_s, 4)} s x {devices} / 3600 = "
            f"{digits(choice.device_hours, 4)} device-hours")
    if choice.cost is None or choice.price is None:
        return text
    return f"{text}; x {choice.price:g} = {digits(choice.cost, 4)} {task.unit}"


def _answers_of_task(task: TrainingTask) -> Iterator[Answer]:
    """Yield the fastest and the cheapest choice, the Pareto front, and the gain of more ranks."""
    chosen = {one.label: one for one in task.choices}
    if len(chosen) < 2:
        (choice,) = chosen.values()
        yield Answer(CANNOT_TELL, f"{_takes(task, choice)}; no other choice to compare",
                     (arithmetic(task, choice),))
        return
    yield _of_best(task, "fastest", task.fastest, chosen)
    yield _of_best(task, "cheapest", task.cheapest, chosen)
    front = [one for one in task.choices if one.on_front]
    yield Answer(
        CLEAR, "Pareto front: " + "; ".join(
            f"{one.label} ({format_seconds(one.time_s)}, {digits(one.spent, 4)} {task.unit})"
                    for one in sorted(front, key=lambda one: one.time_s)),
        (f"{len(front)} of {plural(len(task.choices), 'choice')}, by medians",))
    for step in task.steps:
        yield _of_step(task, step)


_SHOWN_CHOICES = 3


def _of_best(task: TrainingTask, what: str, best: Best, chosen: dict[str, CostChoice]) -> Answer:
    choice = chosen[best.labels[0]]
    evidence = tuple(arithmetic(task, chosen[label]) for label in best.labels) + tuple(
        f"{label}: its ranks share cores, so its time is no measure of more devices"
        for label in best.labels if chosen[label].shares_cores)
    about = ("measured in one launch",) if best.in_launch else ()
    if len(best.labels) > 1:
        why = "equal within the smallest effect" if best.alike else "undecided"
        more = len(best.labels) - _SHOWN_CHOICES
        named = "; ".join((*best.labels[:_SHOWN_CHOICES], *([f"{more} more"] if more > 0 else [])))
        return Answer(
            NONE if best.alike else CANNOT_TELL, f"{what}: {why}: {named}",
            (f"with the first, {_takes(task, choice)}{_savings(task, choice)}", *about, *evidence))
    return Answer(CLEAR, f"{what}: {choice.label}; {_takes(task, choice)}",
                  (f"{_takes(task, choice)}{_savings(task, choice)}", *about, *evidence))


def _takes(task: TrainingTask, one: CostChoice) -> str:
    energy = "" if one.kwh is None else f", {three_digits(one.kwh)} kWh ({one.energy_of})"
    return (f"{task.samples:,} samples take {format_seconds(one.time_s)} and cost "
            f"{three_digits(one.spent)} {task.unit}{energy}")


def _savings(task: TrainingTask, choice: CostChoice) -> str:
    if choice.time_beside is None or choice.cost_beside is None:
        return "; it is the default (first planned)"
    return (f"; against the default ({task.default}){BY_PAIRS if task.fastest.in_launch else ''} "
            f"{_saved_text(choice.time_beside, 'time')} and "
            f"{_saved_text(choice.cost_beside, task.unit if choice.cost is None else 'cost')}")


def _saved_text(beside: Interval, unit: str) -> str:
    if beside.value <= 1:
        return f"it saves {interval_text(beside.map(_saved), percent=True)} of {unit}"
    more = beside.map(lambda ratio: ratio - 1)
    return f"it takes {interval_text(more, percent=True)} more {unit}"


def _saved(ratio: float) -> float:
    return 1 - ratio


def _of_step(task: TrainingTask, step: RanksStep) -> Answer:
    """Return the time on more ranks, the samples from which on they pay, and an hour's cost."""
    what = plural(step.more_nodes, "more node") if step.more_nodes > 0 else "more ranks"
    head = (f"{what}: {step.second} takes {interval_text(step.time, percent=True)} of the time"
            f"{BY_PAIRS if step.in_launch else ''}")
    about: tuple[str, ...] = (f"instead of {step.first}",)
    if step.verdict in (SLOWER, SAME):
        return Answer(NONE, f"{head}: never pays", about)
    if step.hour_saved is None:
        return Answer(CANNOT_TELL, f"{head}: undecided", about)
    if step.from_samples is not None:
        about += (f"faster from {plural(step.from_samples, 'sample')} on, set-up included",)
    verb = "costs" if step.hour_saved > 0 else "also saves"
    spent = f"each hour saved {verb} {three_digits(abs(step.hour_saved))} {task.unit}"
    return Answer(CLEAR, f"{head}; {spent}", about)


def _without(runs: Sequence[Run], tasks: Sequence[TrainingTask]) -> Iterator[Answer]:
    choices = [one for task in tasks for one in task.choices]
    if choices and any(one.cost is None for one in choices):
        yield Answer(CANNOT_TELL, f"price: not set, so costs are device-hours; {PRICE}")
    missing = [one for one in choices if one.kwh is None]
    if missing:
        reasons = dict.fromkeys(
            f"{name}: {why}" for run in runs for report in run.results.telemetry
            for name, why in report.missing.items() if name in ("energy", "gpu"))
        yield Answer(
            CANNOT_TELL, f"energy: no energy counter in {len(missing)} of "
            f"{plural(len(choices), 'choice')}",
            tuple(reasons))


_INTERVAL = "95 % CI"
_FORMULA = "device-hours = samples / (samples/s) x nodes x devices a node / 3600"


def _lead(task: TrainingTask) -> Iterator[str]:
    """Yield what the columns and notes mean that the table of a task has."""
    priced = "; cost = device-hours x price" if task.choices[0].cost is not None else ""
    yield f"{_FORMULA}{priced}; times are without set-up"
    doubtful = [name for name, best in (("fastest", task.fastest), ("cheapest", task.cheapest))
                if len(best.labels) > 1 and not best.alike]
    if doubtful:
        yield f"{', '.join(f'{name}?' for name in doubtful)}: noise hides which of those it is"
    if task.fastest.in_launch:
        yield MEANS_BY_PAIRS
    yield f"{task.choices[0].label}: {arithmetic(task, task.choices[0])}"


def cost_tables(record: Costs) -> Iterator[Table]:
    """Yield a table for each training; the arithmetic of its first row is shown."""
    for task in record.tasks:
        yield Table(
            f"cost of {task.samples:,} samples: {task.title}", _columns(task),
            (Group("", tuple(_row(task, one) for one in task.choices)),),
            lead=tuple(map(Line, _lead(task))))


def cost_charts(record: Costs) -> Iterator[LineChart]:
    """Yield cost over time for each training with several choices."""
    for task in record.tasks:
        if len(task.choices) > 1:
            yield _chart(task)


def _columns(task: TrainingTask) -> tuple[Column, ...]:
    money = task.unit
    saved = f"%{BY_PAIRS}" if task.fastest.in_launch else "%"
    return (
        Column("choice", "choice"), Column("nodes", "nodes", Show.COUNT),
        Column("devices", "devices", Show.COUNT),
        Column("batch", "a step", Show.COUNT, "samples"),
        Column("time", "time", Show.DURATION),
        Column("device_hours", "device-hours", Show.NUMBER, better="less", detail=True),
        Column("cost", "cost", Show.NUMBER, money, better="less", optional=True, first_to_go=True),
        Column("energy", "energy", Show.NUMBER, "kWh", "at the mean power of the case", "less",
               optional=True, first_to_go=True),
        Column("per_1000", "1,000 samples", Show.NUMBER, money, better="less"),
        Column("per_million_tokens", "10^6 tokens", Show.NUMBER, money, better="less",
               optional=True, detail=True),
        Column("time_saved", "time saved", Show.PERCENT, saved,
               "against the default, the first row", "more", optional=True, first_to_go=True),
        Column("time_interval", _INTERVAL, Show.PERCENT, "%", optional=True, first_to_go=True),
        Column("cost_saved", "cost saved", Show.PERCENT, saved,
               "against the default, the first row", "more", optional=True, first_to_go=True),
        Column("cost_interval", _INTERVAL, Show.PERCENT, "%", optional=True, first_to_go=True),
        Column("note", "note", optional=True))


def _row(task: TrainingTask, choice: CostChoice) -> Row:
    tokens = choice.tokens_a_sample
    notes = [*(_rank_text(name, best) for name, best in (
                   ("fastest", task.fastest), ("cheapest", task.cheapest))
               if choice.label in best.labels and len(task.choices) > 1),
             *(["default"] if choice.label == task.default else []),
             *(["Pareto front"] if choice.on_front else []),
             *(["ranks share cores"] if choice.shares_cores else [])]
    saved = [beside and beside.map(_saved) for beside in (choice.time_beside, choice.cost_beside)]
    return Row((
        choice.way, choice.nodes, choice.ranks, int(choice.batch), choice.time_s,
        choice.device_hours, choice.cost,
choice.kwh, choice.spent / task.samples * 1000,
        None if tokens is None else choice.spent / (task.samples * tokens) * 1e6,
        *(cell for share in saved for cell in (share.value if share else None, range_of(share))),
        "; ".join(notes) or None), case_id=choice.case_id)


def _rank_text(name: str, best: Best) -> str:
    """Return ``fastest``, or how it shares this with others."""
    if len(best.labels) == 1:
        return name
    return f"{name}, as others are" if best.alike else f"{name}?"


def _chart(task: TrainingTask) -> LineChart:
    front = [one for one in task.choices if one.on_front]
    default = [one for one in task.choices if one.label == task.default]
    others = [one for one in task.choices if not one.on_front and one.label != task.default]
    time_series = (_course("Pareto front", front, is_joined=True),
               _course("default", default), _course("other choices", others))
    return LineChart(
        f"Cost over time of {task.samples:,} samples", task.title,
        file_name(f"cost_{task.title}"),
        ("Point: a choice, by its median. On the front no other is both faster and cheaper.",),
        tuple(one.case_id for one in task.choices), Axis("time", Show.NUMBER, "s"),
        (Panel(Axis("cost" if front[0].cost is not None else "device-hours", Show.NUMBER,
                    task.unit if front[0].cost is not None else ""),
               tuple(one for one in time_series if one.points)),))


def _course(label: str, choices: Sequence[CostChoice], *, is_joined: bool = False) -> TimeSeries:
    ordered = sorted(choices, key=lambda one: (one.time_s, one.spent))
    points = tuple((one.time_s, ChartPoint(one.spent)) for one in ordered)
    return TimeSeries(label, points, is_joined)


TOPIC = Topic("cost", "time, cost and energy of training",
              cost, cost_tables, cost_charts)
