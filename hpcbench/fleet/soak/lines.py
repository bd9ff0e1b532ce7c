"""A soak in words, and its ``status.json``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from hpcbench.fleet.soak.judge import Judgement, SpeedChange
from hpcbench.fleet.soak.record import CycleFacts, Soak, WindowValues, WrongInCycle, joined
from hpcbench.texts import as_field
from hpcbench.units import digits, format_seconds, plural, rough_time

SCHEMA = "hpcbench.soak-status"
_MOST_LINES = 5


def minute_line(soak: Soak, newest: CycleFacts, judgement: Judgement) -> str:
    """Return the line that the console gets once a minute, and where something was wrong."""
    limits = f"{rough_time(soak.spent_s)} of {rough_time(soak.planned_s)}"
    parts = [f"cycle {soak.cycles}, {limits}", f"{soak.checked:,} results checked",
             f"{soak.wrong_cycles} wrong" if not soak.wrong_cycles else
             f"wrong in {plural(soak.wrong_cycles, 'cycle')}"]
    if soak.n_problems:
        parts.append(plural(soak.n_problems, "problem"))
    parts += [_change_text(one) for one in judgement.changes[:1]] or ["speed steady" if (
        not judgement.undecided) else "speed not judged yet"]
    readings = newest.readings
    if "celsius" in readings:
        parts.append(f"{digits(readings['celsius'], 3)} C, spread "
                     f"{digits(readings['celsius_spread'], 3)}")
    if "clock_low_mhz" in readings:
        parts.append(f"{readings['clock_low_mhz']:.0f}-{readings['clock_high_mhz']:.0f} MHz")
    first = newest.wrong[0] if newest.wrong else None
    text = f": {wrong_text(first)}" if first else (
        f": {newest.problems[0].label} {newest.problems[0].status}" if newest.problems else "")
    return as_field(", ".join(parts) + text)


def wrong_text(wrong: WrongInCycle) -> str:
    node = f" on {wrong.node}" if wrong.node else ""
    return (f"cycle {wrong.cycle} ({wrong.time}), rank {wrong.rank}{node}, {wrong.label}: "
            f"{wrong.text}")


def _change_text(change: SpeedChange) -> str:
    rose = f"{digits(100 * abs(change.share), 2)} % {'slower' if change.is_slower else 'faster'}"
    since = "by a steady slope" if change.cycle is None else f"from cycle {change.cycle} on"
    return f"{change.what} {rose} {since}"


def closing_lines(soak: Soak, judgement: Judgement) -> Iterator[str]:
    """Yield the result first, then the reasons, then what cannot be told."""
    found = [word for word, holds in (
        ("CORRUPTION", judgement.is_corrupt), ("FAILURES", judgement.has_failed),
        ("ERRORS", judgement.has_errors), ("DRIFT", judgement.is_slower)) if holds]
    sound = "SOUND" if soak.has_reached_its_end else "SOUND SO FAR"
    yield as_field(f"{', '.join(found) or sound}: {soak.name}, {plural(soak.cycles, 'cycle')} in "
                   f"{rough_time(soak.spent_s)}, {soak.checked:,} results checked")
    yield from (f"  injected: {as_field(fault)}" for fault in soak.faults)
    yield from (f"  wrong: {as_field(wrong_text(one))}" for one in soak.wrong[:_MOST_LINES])
    yield from (f"  {'changed' if one.has_changed else 'not repeated'}: {as_field(one.label)} "
                f"differs in cycle {one.other} from the first cycle within its tolerance, after "
                f"{plural(one.same, 'cycle')} with the same bits"
                for one in soak.cases if one.other)
    yield from (f"  {one.status}: {as_field(f'cycle {one.cycle}, {one.label}: {one.reason}')}"
                for one in soak.problems[:_MOST_LINES])
    yield from (f"  speed: {as_field(_change_text(one))}" for one in judgement.changes)
    if soak.xids:
        yield f"  XIDs of GPUs: {', '.join(map(str, soak.xids))}"
    yield from (f"  {reason}: {plural(count, 'cycle')}"
                for reason, count in soak.throttled_by.items())
    yield from (f"  cycle {one.cycle} has {as_field(one.what)}" for one in soak.changes)
    yield from (f"  longest sample: {as_field(one.label)} {format_seconds(one.seconds)} in cycle "
                f"{one.cycle}, {digits(one.ratio, 2)} times its median" for one in soak.slowest[:1])
    if judgement.undecided:
        yield f"  not judged: {judgement.undecided}"


def status_of(soak: Soak, judgement: Judgement, state: str) -> dict[str, Any]:
    """Return what ``status.json`` has, in JSON values."""
    return {
        "schema": SCHEMA, "schema_version": 1, "state": state,
        "updated_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "name": soak.name,
        "run_id": soak.run_id, "cycles": soak.cycles, "spent_s": round(soak.spent_s, 1),
        "planned_s": soak.planned_s, "planned_cycles": soak.planned_cycles,
        "checked": soak.checked, "n_wrong": soak.n_wrong, "wrong_cycles": soak.wrong_cycles,
        "first_wrong": soak.wrong[0]._asdict() if soak.wrong else None,
        "n_problems": soak.n_problems,
        "first_problem": soak.problems[0]._asdict() if soak.problems else None,
        "speed": [{"what": one.what, "share": one.share, "cycle": one.cycle}
                  for one in judgement.changes],
        "speed_not_judged": judgement.undecided,
        "readings": {name: _whole(series) for name, series in soak.readings.items()},
        "throttled_by": dict(soak.throttled_by), "xids": list(soak.xids),
        "findings": dict(soak.findings), "faults": [*soak.faults], "is_bad": judgement.is_bad}


def _whole(series: tuple[WindowValues, ...]) -> dict[str, float]:
    whole = series[0]
    for point in series[1:]:
        whole = joined(whole, point)
    return {"mean": whole.mean, "least": whole.least, "greatest": whole.greatest}
