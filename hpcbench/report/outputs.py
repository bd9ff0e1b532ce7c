"""The files a finished or rebuilt run gets beside ``results.h5``."""

from __future__ import annotations

from pathlib import Path

from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.summary import write_summary


def write_reports(results: Results, folder: Path, *, plots: bool = True) -> list[Path]:
    """Write the summaries and, unless told not to, the plots; return the paths written.

    The plots read their samples from ``folder/results.h5``; where no case is ok there are none.
    Raises FileError if a file cannot be written.
    """
    written = write_summary(results, folder)
    if plots:
        from hpcbench.report.plots import plot_results

        with open_results(folder) as file:
            written += plot_results(results, file, folder / "plots")
    return written
