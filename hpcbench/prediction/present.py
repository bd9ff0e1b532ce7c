"""Predictions for readers: a table, sentences, and plain values. A prediction has columns, a status
and a schema of its own: nothing that reads measurements takes it for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcbench.prediction.predict import Predicted, Predictions
from hpcbench.statistics.order import Interval
from hpcbench.units import format_seconds, grouped, plural
from hpcbench.views.labels import short_labels
from hpcbench.views.table import Cell, Column, Group, Range, Row, Show, Table, WithInterval

SCHEMA, PREDICTED, REFUSED = "hpcbench.predict", "predicted", "refused"
_COLUMNS = (
    Column("case", "case"), Column("ranks", "ranks", Show.COUNT),
    Column("predicted", "predicted time", Show.DURATION, "", "", "less"),
    Column("interval", "95 % interval", Show.DURATION, "", "of a median as it would be measured"),
    Column("efficiency", "efficiency", Show.PERCENT, "%",
           "work per second and rank over that of the fewest ranks measured", "more",
           optional=True),
    Column("per_second", "samples/s", Show.NUMBER, "", "of all ranks together", "more",
           optional=True),
    Column("tokens", "tokens/s", Show.NUMBER, "", "of all ranks together", "more", optional=True,
           first_to_go=True),
    Column("memory", "memory", Show.SIZE, "", "of a rank, planned", "less", optional=True,
           first_to_go=True),
    Column("cost", "cost", Show.NUMBER, "10^6", "of so many samples, in the price's currency",
           "less", optional=True),
    Column("largest", "largest part", optional=True),
    Column("measured", "measured on", meaning="the numbers of ranks that it rests on"),
    Column("beyond", "outside of", optional=True,
           meaning="what was measured: ranks, sizes, shape; contention: other groups of its node "
           "call at once, as its law did not"))


def _cell(one: Interval | None) -> Cell:
    if one is None or one.low is None or one.high is None:
        return None if one is None else one.value
    return WithInterval(one.value, one.low, one.high)


def table(found: Predictions) -> Table | None:
    """Return a table of what is predicted; None where all is refused."""
    shown = [one for one in found.cases if one.step is not None]
    if not shown:
        return None
    labels = short_labels(one.label for one in shown)
    rows = tuple(Row(_cells(one, labels[one.label])) for one in shown)
    return Table("predicted, not measured", _COLUMNS, (Group("", rows),)).without_empty()


def _cells(one: Predicted, label: str) -> tuple[Cell, ...]:
    assert one.step is not None
    first, *others = one.step.terms
    largest = f"{first.name} {100 * first.seconds / one.step.time.value:.0f} %" if others else None
    return (label, one.ranks, one.step.time.value, Range(*one.step.time.ends),
            _cell(one.efficiency), _cell(one.per_second),
            _cell(one.tokens_per_second), one.memory_bytes or None, _cell(one.cost),
            largest, ", ".join(map(str, one.measured_ranks)),
            ", ".join(one.step.beyond) or None)


def sentences(found: Predictions) -> Iterator[str]:
    """Yield notes, what was refused, and what was left out, in a sentence each."""
    yield from found.notes
    refused = grouped((one.refused, one) for one in found.cases if one.refused)
    for why, cases in refused.items():
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        yield f"no prediction of {cases[0].label}{more}: {why}"
    for why, count in found.left_out.items():
        yield f"left out: {plural(count, 'case')} {why}"


def result(found: Predictions) -> str:
    """Return the result in one sentence."""
    made = [one for one in found.cases if one.step is not None]
    total = f"{len(made)} of {plural(len(found.cases), 'case')} predicted"
    if len(made) != 1 or made[0].step is None:
        return total
    time = made[0].step.time
    low, high = time.ends
    return (f"{total}: {format_seconds(time.value)} "
            f"({format_seconds(low)} to {format_seconds(high)})")


def plain(found: Predictions) -> dict[str, Any]:
    """Return all as JSON values, in SI units."""
    return {
        "schema": SCHEMA, "schema_version": 1, "notes": [*found.notes],
        "left_out": dict(found.left_out),
        "cases": [_plain(one) for one in found.cases],
        "laws": [{
            "call": key.collective, "backend": key.backend, "device": key.device,
            "ranks_on_a_node": key.on_node or None, "groups_at_once": key.at_once,
            "measured_ranks": [*law.rank_counts],
            "ranges": [{"most_ranks": _end(part.ranks), "below_bytes": _end(part.below),
                        "algorithm": part.algorithm.name, "fixed_s": part.values[0],
                        "step_s": part.values[1], "byte_s": part.values[2]}
                       for part in law.fit.ranges]} for key, law in found.laws.items()]}


def _end(value: float) -> float | None:
    return value if value < float("inf") else None


def _plain(one: Predicted) -> dict[str, Any]:
    of_step = {} if one.step is None else {
        "time_s": _ends(one.step.time), "beyond": [*one.step.beyond],
        "parts": [{"name": part.name, "seconds": part.seconds, "error_s": part.error_s,
                   "beyond": [*part.beyond]} for part in one.step.terms]}
    return {
        "label": one.label, "kind": one.kind or None, "ranks": one.ranks,
        "status": REFUSED if one.step is None else PREDICTED, "refused": one.refused or None,
        "ranks_on_a_node": one.on_node, "measured_ranks": [*one.measured_ranks],
        "memory_bytes": one.memory_bytes or None, "unit": one.unit or None,
        "efficiency": _ends(one.efficiency), "per_second": _ends(one.per_second),
        "tokens_per_second": _ends(one.tokens_per_second), "cost": _ends(one.cost), **of_step}


def _ends(one: Interval | None) -> dict[str, float | None] | None:
    return None if one is None else {"value": one.value, "low": one.low, "high": one.high}
