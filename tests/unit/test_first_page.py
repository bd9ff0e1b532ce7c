"""The table of README is of the run whose summary lies in plots/readme; no row of it has a flag."""

from __future__ import annotations

import csv

import pytest

from hpcbench.views.table import Range, Show, WithInterval, cell_text
from launcher import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = README.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
ROWS = [line.split() for line in TABLE.splitlines() if line.strip()][2:]


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_a_row_of_the_first_page_is_that_of_the_stored_run(row: list[str]) -> None:
    collective, backend, size, *told = row
    with (ROOT / "plots/readme/summary.csv").open(encoding="utf-8", newline="") as file:
        (found,) = (one for one in csv.DictReader(file) if one["block"] == "collectives" and (
            one["collective"], one["backend"], one["size_bytes"]) == (collective, backend, size))
    low, median, high = (float(found[f"{name}_s"]) for name in ("ci_low", "median", "ci_high"))
    assert told == [cell_text(WithInterval(median, low, high), Show.US),
                    cell_text(Range(low, high), Show.US),
                    cell_text(1e9 * float(found["busbw_gb_per_s"]), Show.GB_PER_S),
                    found["n_wrong"], found["n"]]
    assert (found["status"], found["quality"]) == ("ok", "")


def test_the_figure_of_the_first_page_is_of_the_same_run() -> None:
    caption = (ROOT / "plots/readme/all_reduce.txt").read_text(encoding="utf-8")
    assert "plots/readme/all_reduce.png" in README and len(ROWS) <= 8
    assert caption.splitlines()[-1].startswith("default, run 20261124-040257-e4f1f6, ")
