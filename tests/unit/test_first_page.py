"""The table of README is of the run whose summary lies in plots/readme; no row of it has a flag."""

from __future__ import annotations

import csv

import pytest

from hpcbench.units import parse_bytes
from hpcbench.views.table import Show, WithInterval, cell_text, like_median, time_texts
from launcher import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = README.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
ROWS = [line for line in TABLE.splitlines() if " us" in line or " ms" in line]
BACKENDS = ("gloo", "mpi")


def row_cells() -> dict[tuple[str, str], list[str]]:
    """Return the cells of README's table by collective, which stands once, and size."""
    cells, name = {}, ""
    for line in ROWS:
        words = line.split()
        name = words.pop(0) if not words[0].isdigit() else name
        cells[name, "".join(words[:2])] = words[2:]
    return cells


@pytest.mark.parametrize(("name", "size"), row_cells())
def test_a_row_of_the_first_page_is_that_of_the_stored_run(name: str, size: str) -> None:
    with (ROOT / "plots/readme/summary.csv").open(encoding="utf-8", newline="") as file:
        found = {one["backend"]: one for one in csv.DictReader(file)
                 if (one["block"], one["collective"]) == ("collectives", name)
                 and one["size_bytes"] == str(parse_bytes(size))}
    expected = []
    first: tuple[float, ...] = ()
    for row in map(found.__getitem__, BACKENDS):
        low, median, high = (float(row[f"{end}_s"]) for end in ("ci_low", "median", "ci_high"))
        busbw = like_median(1e9 * float(row["busbw_gb_per_s"]), WithInterval(median, low, high))
        speedup = [cell_text(WithInterval(first[1] / median, first[0] / high, first[2] / low),
                             Show.NUMBER)] if first else []
        first = low, median, high
        expected += [*" ".join(time_texts(median, low, high)).split(), *speedup,
                     cell_text(busbw, Show.GB_PER_S)]
        assert (row["status"], row["quality"], row["n_wrong"]) == ("ok", "", "0")
    assert row_cells()[name, size] == expected


def test_the_figure_of_the_first_page_is_of_the_same_run() -> None:
    caption = (ROOT / "plots/readme/all_reduce.txt").read_text(encoding="utf-8")
    assert "plots/readme/all_reduce.png" in README and 0 < len(ROWS) <= 8
    assert caption.splitlines()[-1].startswith("default, run 20261124-040257-e4f1f6, ")
