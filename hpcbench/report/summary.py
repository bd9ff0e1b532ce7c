"""summary.json and summary.csv: the printed numbers for machines (fields: docs/method.md).

Both hold one row per planned case. Neither holds the environment, stacks or standard error of a
run: those stay in results.h5.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcbench.kinds.collective.derive.rates import bandwidth
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.primitive.derive.partners import NOTHING, Comparison, compare
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.present.summary_fields import (
    PRIMITIVE_FIELDS,
    listed_primitives,
    primitive_fields,
)
from hpcbench.kinds.training.derive.exposed import UNPAIRED, Exposure, exposures
from hpcbench.kinds.training.derive.scaling import scaling
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.present.summary_fields import (
    TRAINING_FIELDS,
    scaling_fields,
    training_fields,
    training_results,
)
from hpcbench.operations.bandwidth import busbw_factor
from hpcbench.plan.case import STATUSES, Plan
from hpcbench.reduce.results import FOLDS, CaseResult, Results, Statistics
from hpcbench.reduce.timing import CI_LEVEL
from hpcbench.report.text import device_memory_how, env_text
from hpcbench.views.timing import INTERVAL_TITLE, fold_of
from hpcbench.trace.files import whole_file
from hpcbench.units import to_gb_per_s

SCHEMA_VERSION = 2
STATISTIC_FIELDS = ("n", "min_s", "p5_s", "p25_s", "median_s", "p75_s", "p95_s", "p99_s", "max_s")
INTERVAL_FIELDS = ("ci_low_s", "ci_high_s", "ci_reliable")
TIMING_FIELDS = (
    "calls", "n_warmup", "n_ramp", "n_surplus", "n_late", "n_outlier", "unflagged_n",
    "unflagged_median_s", "quality", "stop_reasons", "first_call_s", "communicator_s", "last_in_s",
    "local_max_s", "imbalance_s", "enqueue_s", "device_s", "clock_bound_s",
    "quickest_rank", "quickest_share", "launch_medians_s",
)
LIBRARY_FIELDS = ("algorithm", "protocol", "channels", "transport")
FIELDS = (
    "case_id", "index", "block", "kind", "collective", "backend", "device", "world_size", "mode",
    "env", "dtype", "op", "root", "in_place", "requested_bytes",
    "size_bytes", "count", "split", "groups", "warmup", "iterations", "validate", "status",
    "reason", "blamed_rank", "n_wrong",
    *STATISTIC_FIELDS, "busbw_factor", "algbw_gb_per_s", "busbw_gb_per_s",
    "fold", "ci_level", *INTERVAL_FIELDS, "min_iterations", "batch", "device_memory",
    *TIMING_FIELDS, *LIBRARY_FIELDS, "pass_medians_s", *PRIMITIVE_FIELDS,
    *TRAINING_FIELDS,
)
"""The columns of summary.csv, and the keys of each of summary.json's ``cases``; those of schema
version 1 come first. A list is a list in JSON, and text separated by spaces in CSV, with - for
null (``not_compared`` and ``not_paired``, whose entries are sentences: by semicolons)."""
COMMUNICATION_NAMES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce_scatter",
    "send_recv": "p2p", "all_to_all": "all_to_all", "broadcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier",
}
"""Collective -> its key in ``results.communication``; the first four are other tools' names."""
COMMUNICATION_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "op", "in_place", "size_bytes", "split",
    "groups", "n", "median_s", "p95_s", "algbw_gb_per_s", "busbw_gb_per_s", "mode", "fold",
    "ci_low_s", "ci_high_s", "ci_reliable", "device_memory",
)


def write_summary(results: Results, folder: Path) -> list[Path]:
    """Write both files into ``folder`` and return their paths. Raises FileError."""
    comparisons, exposed = compare(results.cases), exposures(results.cases)
    scaled, hardware = scaling(results.cases), results.plan.config.get("hardware", {})
    rows = [case_row(item, comparisons.get(item.case.case_id, NOTHING), hardware,
                     exposed.get(item.case.case_id, UNPAIRED))
            | scaling_fields(scaled.get(item.case.case_id)) for item in results.cases]
    json_path, csv_path = folder / "summary.json", folder / "summary.csv"
    document = summary_document(results, rows)
    with whole_file(json_path) as part:
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf-8")
    with whole_file(csv_path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _csv_cell(name, row[name]) for name in FIELDS} for row in rows)
    return [json_path, csv_path]


def _csv_cell(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    return ("; " if name in ("not_compared", "not_paired") else " ").join(
        "-" if item is None else str(item) for item in value)


def case_row(
    item: CaseResult, told: Comparison = NOTHING,
    hardware: Mapping[str, Any] = MappingProxyType({}), exposure: Exposure = UNPAIRED,
) -> dict[str, Any]:
    """Return one case's `FIELDS`; None where a case has no such number.

    ``hardware`` is the config's section, which may declare peaks.
    """
    case, work, stats = item.case, item.case.workload, item.statistics
    row = {**dict.fromkeys(FIELDS), **{name: getattr(case, name) for name in (
        "case_id", "index", "block", "kind", "backend", "world_size", "mode", "warmup",
        "iterations", "validate", "batch")}}
    row |= {"dtype": work.dtype, "groups": work.groups}
    row["min_iterations"] = case.iterations if case.is_fixed else case.min_iterations
    row |= {"env": env_text(case), "device": item.device or case.device,
            "device_memory": device_memory_how(item),
            "status": item.status,
            "reason": item.reason, "blamed_rank": item.blamed_rank, "n_wrong": item.n_wrong}
    row |= {name: getattr(stats, name) if stats else None for name in STATISTIC_FIELDS}
    row |= {name: getattr(item.timing, name) if item.timing else None
            for name in (*TIMING_FIELDS, "pass_medians_s")}
    row |= {name: item.library[name] if item.library else None for name in LIBRARY_FIELDS}
    row |= {"fold": fold_of(item) if stats else None, **_interval(stats)}
    if isinstance(work, Collective):
        row |= _collective_fields(work, case.world_size, stats)
    elif isinstance(work, Primitive):
        row |= primitive_fields(work, told)
    elif isinstance(work, Training):
        row |= training_fields(item, work, hardware, exposure)
    return {name: row[name] for name in FIELDS}


def _collective_fields(
    work: Collective, world_size: int, stats: Statistics | None
) -> dict[str, Any]:
    """Return what only collectives have, and their rates."""
    rates = bandwidth(work, world_size, stats.median_s) if stats else None
    return {
        **asdict(work), "busbw_factor": busbw_factor(work.collective, world_size // work.groups),
        "algbw_gb_per_s": to_gb_per_s(rates.algbw_bytes_per_s) if rates else None,
        "busbw_gb_per_s": to_gb_per_s(rates.busbw_bytes_per_s) if rates else None}


def _interval(stats: Statistics | None) -> dict[str, Any]:
    """Return the ends of the interval, its level, and whether it can be relied on."""
    if stats is None or stats.ci_low_s is None:
        return dict.fromkeys((*INTERVAL_FIELDS, "ci_level"))
    return {"ci_level": CI_LEVEL, **{name: getattr(stats, name) for name in INTERVAL_FIELDS}}


def summary_document(results: Results, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return summary.json's content."""
    run = results.run
    counts = Counter(item.status for item in results.cases)
    measure = results.plan.config.get("measure", {})
    return {
        "schema": "hpcbench.summary", "schema_version": SCHEMA_VERSION,
        "name": run.name, "world_size": run.world_size, "timestamp": run.started_at or None,
        "run_id": run.run_id, "plan_hash": run.plan_hash, "nodes": list(run.nodes),
        "ranks_present": list(run.ranks_present), "hpcbench_version": run.hpcbench_version,
        "versions": dict(run.versions), "environment_hash": run.environment_hash,
        "definitions": {
            "time": "median over the timed samples of the fold, seconds", "folds": dict(FOLDS),
            "interval": INTERVAL_TITLE,
            "gb": "1e9 bytes", "details": "docs/method.md",
        },
        "repeats": {"passes": results.plan.passes, "launches": results.plan.launches,
                    **{name: measure.get(name) for name in ("order", "seed")}},
        "clocks": results.clocks and asdict(results.clocks),
        "canary": results.canary and asdict(results.canary),
        "config": _config(rows, results.plan),
        "totals": {"planned": len(results.plan.cases), **{s: counts[s] for s in STATUSES}},
        "results": {
            "communication": _communication(rows), "primitives": listed_primitives(rows),
            **training_results(rows, results.cases, results.plan.config.get("hardware", {})),
        },
        "cases": rows,
        "findings": [asdict(finding) for finding in results.findings],
    }


def _config(rows: list[dict[str, Any]], plan: Plan) -> dict[str, Any]:
    """Return what all rows that ran share; a list where the sweep varies it."""
    rows = [row for row in rows if row["status"] not in ("skipped", "not_run")] or rows
    is_fixed = {case.case_id: case.is_fixed for case in plan.cases}
    return {
        "warmup_iters": _one_or_all(row["warmup"] for row in rows),
        "benchmark_iters": _one_or_all(
            row["iterations"] if is_fixed[row["case_id"]] else "auto" for row in rows),
        "device": _one_or_all(row["device"].split(":")[0] for row in rows),
        "mode": _one_or_all(row["mode"] for row in rows),
    }


def _one_or_all(values: Iterable[int | str]) -> Any:
    found = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    return found[0] if len(found) == 1 else found


def _communication(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the ok rows under the names that users of other tools look for."""
    return {
        name: [{field: row[field] for field in COMMUNICATION_FIELDS} for row in rows
               if row["collective"] == collective and row["status"] == "ok"]
        for collective, name in COMMUNICATION_NAMES.items()
    }
