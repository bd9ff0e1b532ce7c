"""What training costs, as a table and a chart: cost over time with the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.analysis.cost import Costs, arithmetic
from hpcbench.analysis.cost_choices import Choice, Task
from hpcbench.analysis.scaling_series import Band
from hpcbench.views.chart import Axis, LineChart, Panel, Point, file_name
from hpcbench.views.chart import Line as Course
from hpcbench.views.table import Column, Group, Line, Range, Row, Show, Table

_INTERVAL = "95 % interval"
_FORMULA = ("device-hours = samples / (samples/s) x nodes x devices a node / 3600; "
            "cost = device-hours x price; times are without set-up")


def tables(record: Costs) -> Iterator[Table]:
    """Yield a table for each training; the arithmetic of its first row is shown."""
    for task in record.tasks:
        first = task.choices[0]
        yield Table(
            f"cost of {task.samples:,} samples: {task.title}", _columns(task),
            (Group("", tuple(_row(task, one) for one in task.choices)),),
            lead=(Line(_FORMULA), Line(f"{first.label}: {arithmetic(task, first)}")))


def charts(record: Costs) -> Iterator[LineChart]:
    """Yield cost over time for each training with several choices."""
    for task in record.tasks:
        if len(task.choices) > 1:
            yield _chart(task)


def _columns(task: Task) -> tuple[Column, ...]:
    money = task.unit
    return (
        Column("choice", "choice"), Column("nodes", "nodes", Show.COUNT),
        Column("devices", "devices", Show.COUNT), Column("time", "time", Show.DURATION),
        Column("device_hours", "device-hours", Show.NUMBER, better="less"),
        Column("cost", "cost", Show.NUMBER, money, better="less", optional=True),
        Column("energy", "energy", Show.NUMBER, "kWh", "at the mean power of the case", "less",
               optional=True),
        Column("per_1000", "1,000 samples", Show.NUMBER, money, better="less"),
        Column("per_million_tokens", "10^6 tokens", Show.NUMBER, money, better="less",
               optional=True),
        Column("time_saved", "time saved", Show.PERCENT, "%", "beside the default, the first row",
               "more", optional=True),
        Column("time_interval", _INTERVAL, Show.PERCENT, "%", optional=True),
        Column("cost_saved", "cost saved", Show.PERCENT, "%", "beside the default, the first row",
               "more", optional=True),
        Column("cost_interval", _INTERVAL, Show.PERCENT, "%", optional=True),
        Column("note", "note", optional=True))


def _row(task: Task, one: Choice) -> Row:
    tokens = one.tokens_a_sample
    return Row((
        one.label, one.nodes, one.ranks, one.time_s, one.device_hours, one.cost, one.kwh,
        one.spent / task.samples * 1000,
        None if tokens is None else one.spent / (task.samples * tokens) * 1e6,
        *_saved(one.time_beside), *_saved(one.cost_beside), "; ".join(_notes(task, one)) or None),
        case_id=one.case_id)


def _saved(beside: Band | None) -> tuple[float | None, Range | None]:
    if beside is None:
        return None, None
    if beside.low is None or beside.high is None:
        return 1 - beside.value, None
    return 1 - beside.value, Range(1 - beside.high, 1 - beside.low)


def _notes(task: Task, one: Choice) -> Iterator[str]:
    if one.label == task.default:
        yield "default"
    if one.on_front:
        yield "Pareto front"
    if one.shares_cores:
        yield "ranks share cores"


def _chart(task: Task) -> LineChart:
    front = [one for one in task.choices if one.on_front]
    default = [one for one in task.choices if one.label == task.default]
    others = [one for one in task.choices if not one.on_front and one.label != task.default]
    courses = (_course("Pareto front", front, is_joined=True),
               _course("default", default), _course("other choices", others))
    return LineChart(
        f"Cost over time of {task.samples:,} samples", task.title,
        file_name(f"cost_{task.title}"),
        ("Point: a choice, by its median. On the front no other is both faster and cheaper.",),
        tuple(one.case_id for one in task.choices), Axis("time", Show.NUMBER, "s"),
        (Panel(Axis("cost" if front[0].cost is not None else "device-hours", Show.NUMBER,
                    task.unit if front[0].cost is not None else ""),
               tuple(one for one in courses if one.points)),))


def _course(label: str, choices: Sequence[Choice], *, is_joined: bool = False) -> Course:
    ordered = sorted(choices, key=lambda one: (one.time_s, one.spent))
    return Course(label, tuple((one.time_s, Point(one.spent)) for one in ordered), is_joined)
