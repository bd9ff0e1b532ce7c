"""summary.json and summary.csv: the printed numbers for machines (fields: docs/method.md).

Both hold one row per planned case. Neither holds the environment, stacks or standard error of a
run: those stay in results.h5.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcbench.analysis.bandwidth import bandwidth, busbw_factor
from hpcbench.plan.case import STATUSES
from hpcbench.reduce.results import FOLD, CaseResult, Results
from hpcbench.report.text import env_text, transport_how
from hpcbench.report.whole_file import whole_file
from hpcbench.units import to_gb_per_s

SCHEMA_VERSION = 1
STATISTIC_FIELDS = ("n", "min_s", "p5_s", "p25_s", "median_s", "p75_s", "p95_s", "p99_s", "max_s")
FIELDS = (
    "case_id", "index", "block", "kind", "collective", "backend", "device", "transport",
    "world_size", "mode", "env", "dtype", "op", "root", "in_place", "requested_bytes",
    "size_bytes", "count", "split", "groups", "warmup", "iterations", "validate", "status",
    "reason", "blamed_rank", "n_wrong",
    *STATISTIC_FIELDS, "busbw_factor", "algbw_gb_per_s", "busbw_gb_per_s",
)
"""The columns of summary.csv, and the keys of each of summary.json's ``cases``."""
COMMUNICATION_NAMES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce_scatter",
    "send_recv": "p2p", "all_to_all": "all_to_all", "broadcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier",
}
"""Collective -> its key in ``results.communication``; the first four are other tools' names."""
COMMUNICATION_FIELDS = (
    "case_id", "backend", "device", "transport", "world_size", "dtype", "op", "in_place",
    "size_bytes", "split", "groups", "n", "median_s", "p95_s", "algbw_gb_per_s", "busbw_gb_per_s",
)


def write_summary(results: Results, folder: Path) -> list[Path]:
    """Write both files into ``folder`` and return their paths. Raises FileError."""
    rows = [case_row(item) for item in results.cases]
    json_path, csv_path = folder / "summary.json", folder / "summary.csv"
    document = summary_document(results, rows)
    with whole_file(json_path) as part:
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf-8")
    with whole_file(csv_path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return [json_path, csv_path]


def case_row(item: CaseResult) -> dict[str, Any]:
    """Return one case's `FIELDS`; None where a case has no such number."""
    case, work, stats = item.case, item.case.workload, item.statistics
    row = {**asdict(work), **{name: getattr(case, name) for name in (
        "case_id", "index", "block", "kind", "backend", "world_size", "mode", "warmup",
        "iterations", "validate")}}
    row |= {"env": env_text(case), "device": item.device or case.device,
            "transport": transport_how(item), "status": item.status, "reason": item.reason,
            "blamed_rank": item.blamed_rank, "n_wrong": item.n_wrong,
            "busbw_factor": busbw_factor(work.collective, case.group_size)}
    row |= {name: getattr(stats, name) if stats else None for name in STATISTIC_FIELDS}
    rates = bandwidth(work, case.world_size, stats.median_s) if stats else None
    row["algbw_gb_per_s"] = to_gb_per_s(rates.algbw_bytes_per_s) if rates else None
    row["busbw_gb_per_s"] = to_gb_per_s(rates.busbw_bytes_per_s) if rates else None
    return {name: row[name] for name in FIELDS}


def summary_document(results: Results, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return summary.json's content."""
    run = results.run
    counts = Counter(item.status for item in results.cases)
    return {
        "schema": "hpcbench.summary", "schema_version": SCHEMA_VERSION,
        "name": run.name, "world_size": run.world_size, "timestamp": run.started_at or None,
        "run_id": run.run_id, "plan_hash": run.plan_hash, "nodes": list(run.nodes),
        "ranks_present": list(run.ranks_present), "hpcbench_version": run.hpcbench_version,
        "versions": dict(run.versions),
        "definitions": {
            "time": f"median over iterations of the {FOLD} of end - start",
            "gb": "1e9 bytes", "details": "docs/method.md",
        },
        "config": _config(rows),
        "totals": {"planned": len(results.plan.cases), **{s: counts[s] for s in STATUSES}},
        "results": {
            "communication": _communication(rows),
            "training": None, "memory": None,
            "not_measured": {"training": "this version measures collectives only",
                             "memory": "this version measures collectives only"},
        },
        "cases": rows,
        "findings": [asdict(finding) for finding in results.findings],
    }


def _config(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all rows that ran share; a list where the sweep varies it."""
    rows = [row for row in rows if row["status"] not in ("skipped", "not_run")] or rows
    return {
        "warmup_iters": _one_or_all(row["warmup"] for row in rows),
        "benchmark_iters": _one_or_all(row["iterations"] for row in rows),
        "device": _one_or_all(row["device"].split(":")[0] for row in rows),
        "mode": _one_or_all(row["mode"] for row in rows),
    }


def _one_or_all(values: Iterable[Any]) -> Any:
    found = sorted(set(values))
    return found[0] if len(found) == 1 else found


def _communication(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the ok rows under the names that users of other tools look for."""
    return {
        name: [{field: row[field] for field in COMMUNICATION_FIELDS} for row in rows
               if row["collective"] == collective and row["status"] == "ok"]
        for collective, name in COMMUNICATION_NAMES.items()
    }
