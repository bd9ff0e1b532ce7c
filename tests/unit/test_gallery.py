"""The gallery in plots/ is in step with the code: each chart has its picture and its caption."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hpcbench.answers.answer import Run
from hpcbench.answers.topics import topic_results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.charts import charts_of, origin_text
from hpcbench.report.plots import DRAWERS
from hpcbench.report.plots.style import caption
from hpcbench.views.chart import BACKEND_COLOURS, Chart

GALLERY = Path(__file__).parents[2] / "plots"
AGAIN = "python scripts/gallery.py draws the gallery again"


@pytest.fixture(scope="module")
def found() -> tuple[list[Chart], str]:
    """Return the charts of the stored run, and where they are from."""
    with open_results(GALLERY / "results.h5") as file:
        told = topic_results(Run("plots", file.results, file))
        return charts_of(file.results, file, told), origin_text(file.results)


def test_each_chart_has_its_picture_and_no_picture_is_left_over(
    found: tuple[list[Chart], str],
) -> None:
    names = {chart.file_stem for chart in found[0]}
    assert {path.stem for path in GALLERY.glob("*.png")} == names, AGAIN
    assert {path.stem for path in GALLERY.glob("*.txt")} == names, AGAIN
    listed = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert not [name for name in names if f"`{name}`" not in listed]


def test_every_sort_of_chart_is_in_the_gallery(found: tuple[list[Chart], str]) -> None:
    assert {type(chart) for chart in found[0]} == set(DRAWERS)


def test_captions_are_those_that_the_code_writes(found: tuple[list[Chart], str]) -> None:
    charts, origin = found
    for chart in charts:
        stored = (GALLERY / f"{chart.file_stem}.txt").read_text(encoding="utf-8")
        assert stored == caption(chart, origin), f"{chart.file_stem}: {AGAIN}"


def test_the_figure_of_readme_is_that_of_its_summary() -> None:
    script = runpy.run_path(str(GALLERY.parent / "scripts/gallery.py"))
    chart, origin = script["readme_chart"]()
    stored = (GALLERY / "readme/all_reduce.txt").read_text(encoding="utf-8")
    assert stored == caption(chart, origin), AGAIN
    colours = {line.label.split()[0]: line.colour for line in chart.panels[0].lines}
    assert colours == {name: BACKEND_COLOURS[name] for name in ("gloo", "mpi")}
