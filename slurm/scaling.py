"""Put the results of runs with different numbers of ranks together: a table and a figure.

    python slurm/scaling.py OUT FOLDER...

Each FOLDER holds runs of hpcbench, of which the latest is taken (or is one). OUT gets scaling.csv
(a row for each case that was measured) and scaling.png: of each benchmark that more than one number
of ranks ran, the median time and its confidence interval against ranks. Needs no MPI, torch or GPU.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("block", "collective", "backend", "device", "dtype", "size_bytes", "world_size", "mode",
           "median_s", "ci_low_s", "ci_high_s", "n", "busbw_gb_per_s", "run")
SERIES = ("block", "collective", "backend", "device", "dtype", "requested_bytes", "mode")
FIGURE_LINES = 12


def measured(folders: list[Path]) -> list[dict[str, str]]:
    """Return the rows of all summaries that have a time, with the name of their run."""
    rows = []
    for folder in folders:
        run = folder / "latest" if (folder / "latest").exists() else folder
        if not (run / "summary.csv").is_file():
            print(f"{folder}: no summary.csv, so nothing of it is in the curve", file=sys.stderr)
            continue
        with (run / "summary.csv").open(newline="") as file:
            rows += [{**row, "run": run.resolve().name} for row in csv.DictReader(file)
                     if row["status"] == "ok" and row["median_s"]]
    return rows


def curves(rows: list[dict[str, str]]) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Return the rows of each benchmark that ran on different numbers of ranks, by ranks."""
    by_series: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in sorted(rows, key=lambda row: int(row["world_size"])):
        by_series.setdefault(tuple(row[name] for name in SERIES), []).append(row)
    return {series: found for series, found in by_series.items()
            if len({row["world_size"] for row in found}) > 1}


def draw(found: dict[tuple[str, ...], list[dict[str, str]]], path: Path) -> None:
    """Draw median time against ranks, both logarithmic, with the interval where there is one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for (block, collective, backend, _, dtype, size, _), rows in list(found.items())[:FIGURE_LINES]:
        ranks = [int(row["world_size"]) for row in rows]
        median = [float(row["median_s"]) * 1e6 for row in rows]
        axes.errorbar(ranks, median, yerr=_interval(rows), marker="o", capsize=3,
                      label=f"{collective or block} {backend} {dtype} {size} B")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="median time (us)")
    ticks = sorted({int(row["world_size"]) for rows in found.values() for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    if len(found) > FIGURE_LINES:
        axes.set_title(f"the first {FIGURE_LINES} of {len(found)}; scaling.csv has all")
    figure.savefig(path, dpi=120)


def _interval(rows: list[dict[str, str]]) -> Any:
    """Return the distances to both ends of the confidence interval in us, 0 without one."""
    return [[abs(float(row[end] or row["median_s"]) - float(row["median_s"])) * 1e6 for row in rows]
            for end in ("ci_low_s", "ci_high_s")]


def main() -> int:
    """Write scaling.csv and scaling.png; 2 if there is nothing to compare."""
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    out, folders = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    rows = measured(folders)
    found = curves(rows)
    if not found:
        print("no benchmark ran on different numbers of ranks", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    with (out / "scaling.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row for rows in found.values() for row in rows)
    draw(found, out / "scaling.png")
    print(f"{out}/scaling.csv  {out}/scaling.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
