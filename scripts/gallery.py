"""Draws the gallery in plots/: each chart of one small run with its caption, one for a paper, and
README's figure from the summary of its run.

    mpirun -np 2 python -m hpcbench run plots/gallery.yaml
    python scripts/gallery.py results/latest      # keeps its results.h5 in plots/, then draws
    python scripts/gallery.py                     # draws again from plots/results.h5

tests/unit/test_gallery.py fails where pictures, captions and code are not in step.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from hpcbench.config.load import load_config
from hpcbench.kinds.collective.derive import CollectiveDeriver
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.results import CaseResult, Statistics
from hpcbench.report.charts import ChartChoice, with_fitting_units
from hpcbench.report.colours import colours_of, with_colours
from hpcbench.report.plots import plot_file, write
from hpcbench.report.plots.style import PAPER
from hpcbench.views.chart import Chart
from hpcbench.views.presenter import presenter_of

GALLERY = Path(__file__).parents[1] / "plots"
STORED = GALLERY / "results.h5"
README_FIGURE = GALLERY / "readme" / "all_reduce.png"
IN_PAPER_STYLE = "all_reduce"


def readme_chart() -> tuple[Chart, str]:
    """Return README's chart, of the cases in the stored summary, and where they are from: the clock
    of the run and its origin are kept from the caption."""
    with README_FIGURE.with_name("summary.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["case_id"]: row for row in csv.DictReader(file) if row["status"] == "ok"}
    plan = make_plan(load_config(GALLERY.parent / "config.json"), 2)
    items = [CaseResult(case, "ok", "", None, case.device, 0, _statistics(rows[case.case_id]), {})
             for case in plan.cases if case.kind == "collective" and case.case_id in rows]
    charts = (one for one in presenter_of("collective").overviews(
        items, CollectiveDeriver().derive(items, {})) if isinstance(one, Chart))
    chart = next(one for one in charts if one.file_stem.startswith(README_FIGURE.stem))
    *_, timing, origin = README_FIGURE.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    return with_colours(replace(with_fitting_units(chart), notes=(*chart.notes, timing)),
                        colours_of(items), items), origin


def _statistics(row: Mapping[str, str]) -> Statistics:
    values = {one.name: row[one.name] for one in fields(Statistics) if row[one.name]}
    return Statistics(n=int(values.pop("n")), ci_reliable=values.pop("ci_reliable") == "True",
                      **{name: float(text) for name, text in values.items()})


def main() -> None:
    """Draw the gallery, of new results if a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, help="folder of a run of gallery.yaml")
    given = parser.parse_args()
    if given.results is not None:
        shutil.copyfile(given.results / "results.h5", STORED)
    for old in (*GALLERY.glob("*.png"), *GALLERY.glob("*.txt"), *GALLERY.glob("paper/*")):
        old.unlink()
    drawn = plot_file(STORED, GALLERY, "png")
    drawn += plot_file(STORED, GALLERY / "paper", "png", ChartChoice(only=(IN_PAPER_STYLE,)), PAPER)
    drawn.append(write(*readme_chart(), README_FIGURE))
    for path in drawn:
        print(path.relative_to(GALLERY.parent))


if __name__ == "__main__":
    main()
