"""The smallest sweep that carries predictions for a number of ranks: its own cases, and by
themselves the calls that they would make there, on few ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbench.config.load import check_config
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError, UsageError, job_command_line
from hpcbench.gen_config import Sweep, check_output, write_sweep
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import plan_estimate_s
from hpcbench.prediction.laws import ALGORITHMS, FEWEST_RANK_COUNTS, TAIL
from hpcbench.prediction.measured import JobShape, key_of, planned_fact
from hpcbench.reduce.kind_facts import IsolatedCall, StepDemand
from hpcbench.statistics.order import t_quantile
from hpcbench.units import plural

PASSES, ITERATIONS = 5, 20
"""So many that medians have intervals, by default."""
_FACTOR = 4
"""Neighbouring sizes of isolated calls lie so far apart."""


def write_prediction_sweep(
    base: Callable[[], Sweep], ranks: int, on_node: int | None, output: Path | None, *, force: bool,
) -> str:
    """Return the sweep that predicts the cases of another on ``ranks`` ranks, or, after writing it
    to ``output``, a line about that. Raises UsageError, ConfigError, FileError."""
    if output:
        check_output(output, force=force)
    return write_sweep(sweep_for(base(), ranks, on_node), output, force=force)


def sweep_for(base: Sweep, ranks: int, on_node: int | None = None) -> Sweep:
    """Return the sweep that carries predictions of another on ``ranks`` ranks, ``on_node`` of them
    on a node. One for this machine (`Sweep.ranks`, those of a node) has its steps and what they
    call alone."""
    raw = on_all_ranks(base.content)
    raw["benchmarks"] = [block for block in raw["benchmarks"] if any(
        planned_fact(case, StepDemand) and not (base.ranks and planned_fact(case, IsolatedCall))
        for case in cases_of({**raw, "benchmarks": [block]}, ranks))]
    on_node = base.ranks or on_node or raw.get("hardware", {}).get("num_devices")
    if on_node is None:
        raise UsageError("how many ranks does a node have? Give --ranks N (N >= "
                         f"{ranks}: one node), or hardware.num_devices in the file")
    return carrying(raw, planned_on(raw, ranks), JobShape(ranks, min(ranks, on_node)), (),
                     f"Made by gen-config --for-prediction {ranks}: run it")


def cases_of(raw: Mapping[str, Any], ranks: int) -> tuple[Case, ...]:
    return make_plan(check_config(raw, "predicted"), ranks).cases


def planned_on(raw: Mapping[str, Any], ranks: int) -> list[Case]:
    """Return the cases of a sweep on so many ranks. Raises UsageError if there are none."""
    every = cases_of(raw, ranks)
    planned = [case for case in every if not case.skip and case.world_size == ranks]
    if not planned:
        raise UsageError(f"the plan for {plural(ranks, 'rank')} has no case to predict: "
                         f"{next((case.skip for case in every if case.skip), 'none is planned')}")
    return planned


def carrying(
    raw: Mapping[str, Any], planned: Sequence[Case], place: JobShape, counts: Sequence[int],
    why: str,
) -> Sweep:
    """Return the sweep of the blocks and the calls of planned cases, to run on ``counts`` ranks, or
    the fewest that carry a law. Raises UsageError."""
    hardware = {name: value for name, value in raw.get("hardware", {}).items() if value}
    content = {**({"hardware": hardware} if hardware else {}),
               "name": "for-prediction",
               "measure": {"passes": PASSES, "iterations": ITERATIONS},
               "benchmarks": [*raw["benchmarks"], *call_blocks(planned, place)]}
    checked = check_config(content, "for-prediction")
    counts = counts or rank_counts(checked, planned, *place)
    minutes = sum(plan_estimate_s(make_plan(checked, count)) for count in counts) / 60
    nodes = f", {place.on_node} on a node" if place.ranks > place.on_node else ""
    return Sweep(content, (
        f"{why} on {', '.join(map(str, counts))} ranks{nodes}, about {max(minutes, 1):.0f} "
        "min in all by assumed rates.",
        *(job_command_line(count, "run", "FILE") for count in counts),
        f"Then: hpcbench predict RESULTS... --world-size {place.ranks} --ranks-per-node "
        f"{place.on_node}"), ranks=counts[-1])


def next_ranks(counts: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return the numbers of ranks to measure next beside ``counts``, for intervals half as wide:
    those that a law lacks, or the least doubling of the most whose Student's t and doublings to
    ``ranks`` halve; else ``ranks`` themselves, which then rest on no law over ranks."""
    known, most = len(counts), max(counts)
    doublings = [most << at for at in range(1, 64) if most << at < ranks]
    if known < FEWEST_RANK_COUNTS:
        return (*doublings, ranks)[:FEWEST_RANK_COUNTS - known]

    def width(known: int, most: int) -> float:
        return t_quantile(TAIL, known - 1) * (1 + max(0.0, math.log2(ranks / most)))
    return next(((one,) for one in doublings if 2 * width(known + 1, one) <= width(known, most)),
                (ranks,))


def blocks_with(labels: Collection[str], raw: Mapping[str, Any], ranks: int) -> Iterator[Any]:
    """Yield the blocks of a sweep that have cases of these labels, with those values of their axes,
    but not their names, which others may have."""
    def has(block: Mapping[str, Any]) -> bool:
        try:
            return any(case.label in labels for case in cases_of(
                {**raw, "benchmarks": [block]}, ranks))
        except ConfigError:  # of a list that is one value
            return False
    blocks = ({name: value for name, value in block.items() if name != "name"}
              for block in raw["benchmarks"])
    yield from (_narrowed(block, has) for block in blocks if has(block))


def _narrowed(value: Any, has: Callable[[Any], bool]) -> Any:
    """Return a part of a block with what of its lists, or strategies, has wanted cases."""
    if isinstance(value, list):
        kept = [one for one in value if has([one])] or value
        return [_narrowed(one, lambda new: has([new])) for one in kept]
    for name in value if isinstance(value, dict) else ():
        own, within = value[name], _within(value, name, has)
        value = {**value, name: {  # each strategy alone: another's cases are none of its
            one: _narrowed(own[one], _within({}, one, within)) for one in own
            if within({one: own[one]})} if name == "strategies" else _narrowed(own, within)}
    return value


def _within(around: Mapping[str, Any], name: str, has: Callable[[Any], bool]) -> Callable[..., Any]:
    return lambda new: has({**around, name: new})


def on_all_ranks(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep without what binds its blocks to the ranks of a run."""
    blocks = [{name: value for name, value in block.items() if name != "world_size"}
              for block in config["benchmarks"]]
    return {**config, "benchmarks": blocks}


def rank_counts(
    config: Config, planned: Sequence[Case], ranks: int, on_node: int,
) -> tuple[int, ...]:
    """Return the fewest numbers of ranks that carry a law and can run the planned cases: whole
    nodes where ranks are on several, from two nodes on. Raises UsageError where there are none."""
    step = on_node if ranks > on_node else 1
    wanted = {key_of(case, case.device) for case in planned}
    found: list[int] = []
    for count in (step * many for many in _COUNTS if step * many <= ranks):
        runs = {key_of(case, case.device) for case in make_plan(config, count).cases
                if not case.skip and case.world_size == count}
        if wanted <= runs:
            found.append(count)
        if len(found) == FEWEST_RANK_COUNTS:
            return tuple(found)
    raise UsageError(f"fewer than {FEWEST_RANK_COUNTS} numbers of ranks up to {ranks} can run all "
                     f"cases ({', '.join(map(str, found)) or 'none'}): measure them on "
                     f"{ranks} ranks, or predict fewer cases")


_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def call_blocks(planned: Sequence[Case], place: JobShape) -> Iterator[dict[str, Any]]:
    """Yield a block for each backend, device, dtype and collective that cases of several calls
    make, with sizes from below the least to above the largest, in groups as they do: of all ranks
    of a stride, or of as many. None for what the cases measure themselves."""
    sizes: dict[tuple[str, str, str, str, int, int], set[float]] = {}
    own: dict[tuple[str, str, str, str, int, int], set[float]] = {}
    for case in planned:
        demand = planned_fact(case, StepDemand)
        found = own if planned_fact(case, IsolatedCall) else sizes
        for call in demand.calls if demand else ():
            if call.ranks > 1 and call.collective in ALGORITHMS and call.size_bytes > 0:
                few = call.ranks if call.ranks * call.stride < place.ranks else 0
                key = (case.backend, case.device, case.workload.dtype, call.collective, few,
                       call.stride)
                found.setdefault(key, set()).add(call.size_bytes)
    sizes = {key: called for key, called in sizes.items() if not (
        key in own and min(own[key]) <= min(called) and max(called) <= max(own[key]))}
    usual = Path(__file__).with_name("calls.json").read_text(encoding="utf-8")
    for (backend, device, dtype, collective, few, stride), called in sizes.items():
        groups = {**({"size": few} if few else {}), **({"stride": stride} if stride > 1 else {})}
        yield {**json.loads(usual.replace("$call", collective)), "backend": backend,
               "device": device, "dtype": dtype, "size": _ladder(min(called), max(called)),
               **({"groups": groups} if groups else {})}


def _ladder(least: float, most: float) -> list[int]:
    """Return sizes from below the least to above the most."""
    first = math.floor(math.log2(least) - 1)
    steps = math.ceil((math.log2(most) + 1 - first) / math.log2(_FACTOR))
    return [2 ** max(first, 0) * _FACTOR ** at for at in range(steps + 1)]
