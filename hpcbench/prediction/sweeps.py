"""The smallest sweep that carries predictions for a number of ranks: its own cases, and by
themselves the calls that they would make there, on few ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcbench.config.load import check_config
from hpcbench.config.schema import Config
from hpcbench.errors import UsageError, job_command_line
from hpcbench.gen_config import Sweep, read_sweep, write_sweep
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import plan_estimate_s
from hpcbench.prediction.laws import ALGORITHMS, FEWEST_RANK_COUNTS
from hpcbench.prediction.measured import JobShape, key_of, planned_fact
from hpcbench.reduce.kind_facts import IsolatedCall, StepDemand
from hpcbench.units import plural
from hpcbench.views.chart import file_name

PASSES, ITERATIONS = 5, 20
"""So many that medians have intervals, by default."""
_FACTOR = 4
"""Neighbouring sizes of isolated calls lie so far apart."""


def write_prediction_sweep(
    hardware: str | None, output: Path | None, *, force: bool, source: Path | None = None,
    ranks: int | None = None,
) -> str:
    """Return the sweep that predicts a file's cases on ``ranks`` ranks, or, after writing it to
    ``output``, a line about that. Raises UsageError, ConfigError, FileError."""
    if source is None or ranks is None or hardware is not None:
        raise UsageError("gen-config prediction: give --from FILE, the sweep to predict, and "
                         "--ranks N, for how many")
    return write_sweep(sweep_for(read_sweep(source).content, ranks), output, force=force)


def sweep_for(sweep: Mapping[str, Any], ranks: int) -> Sweep:
    """Return the sweep that carries predictions of a sweep's cases on ``ranks`` ranks."""
    raw = on_all_ranks(sweep)
    own = check_config(raw, "predicted")
    every = make_plan(own, ranks).cases
    planned = [case for case in every if not case.skip and case.world_size == ranks]
    if not planned:
        raise UsageError(f"the plan for {plural(ranks, 'rank')} has no case to predict: "
                         f"{next((case.skip for case in every if case.skip), 'none is planned')}")
    on_node = (raw.get("hardware") or {}).get("num_devices") or ranks
    own_hardware = {"hardware": raw["hardware"]} if raw.get("hardware") else {}
    content = {**own_hardware, "name": "for-prediction",
               "measure": {"passes": PASSES, "iterations": ITERATIONS},
               "benchmarks": [*raw["benchmarks"], *call_blocks(planned, JobShape(
                   ranks, min(ranks, on_node)))]}
    checked = check_config(content, "for-prediction")
    counts = rank_counts(own, planned, ranks, on_node)
    minutes = sum(plan_estimate_s(make_plan(checked, count)) for count in counts) / 60
    return Sweep(content, (
        f"Made by gen-config prediction for {plural(ranks, 'rank')}: run it on each of these "
        f"numbers of ranks, about {max(minutes, 1):.0f} min in all by assumed rates.",
        *(job_command_line(count, "run", "FILE") for count in counts),
        f"Then: hpcbench predict RESULTS... --world-size {ranks}"), ranks=counts[-1])


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
    """Yield a block for each backend, device and collective that cases of several calls make, with
    sizes from below the least to above the largest; those of groups in a node on as many ranks."""
    sizes: dict[tuple[str, str, str, int], set[float]] = {}
    for case in planned:
        demand = None if planned_fact(case, IsolatedCall) else planned_fact(case, StepDemand)
        for call in demand.calls if demand else ():
            if call.ranks > 1 and call.collective in ALGORITHMS and call.size_bytes > 0:
                few = call.ranks if place.has_one_node(call) and place.ranks > place.on_node else 0
                key = (case.backend, case.device, call.collective, few)
                sizes.setdefault(key, set()).add(call.size_bytes)
    usual = json.loads(Path(__file__).with_name("calls.json").read_bytes())
    for (backend, device, collective, few), called in sizes.items():
        block = {key: collective if value == "$call" else value for key, value in usual.items()}
        word = f"{collective}-{backend}-on-{few}" if few else f"{collective}-{backend}"
        yield {**block, "name": file_name(word), "backend": backend, "device": device,
               "size": _ladder(min(called), max(called)),
               **({"world_size": [few]} if few else {})}


def _ladder(least: float, most: float) -> list[int]:
    """Return sizes from below the least to above the most."""
    first = math.floor(math.log2(least) - 1)
    steps = math.ceil((math.log2(most) + 1 - first) / math.log2(_FACTOR))
    return [2 ** max(first, 0) * _FACTOR ** at for at in range(steps + 1)]
