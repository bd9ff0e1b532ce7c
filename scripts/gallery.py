"""Draws the gallery in plots/: each chart of one small run with its caption, and one for a paper.

    mpirun -np 2 python -m hpcbench run plots/gallery.yaml
    python scripts/gallery.py results/latest      # keeps its results.h5 in plots/, then draws
    python scripts/gallery.py                     # draws again from plots/results.h5

tests/unit/test_gallery.py fails where pictures, captions and code are not in step.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from hpcbench.report.charts import Chosen
from hpcbench.report.plots import plot_file
from hpcbench.report.plots.style import PAPER

GALLERY = Path(__file__).parents[1] / "plots"
STORED = GALLERY / "results.h5"
IN_PAPER_STYLE = "all_reduce"


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
    drawn += plot_file(STORED, GALLERY / "paper", "png", Chosen(only=(IN_PAPER_STYLE,)), PAPER)
    for path in drawn:
        print(path.relative_to(GALLERY.parent))


if __name__ == "__main__":
    main()
