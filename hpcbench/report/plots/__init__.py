"""The figures of a results file. Importing this package imports matplotlib; nothing else does."""

from __future__ import annotations

from pathlib import Path

from hpcbench.errors import FileError, UsageError
from hpcbench.kinds.primitive.derive.partners import compare
from hpcbench.kinds.primitive.present.problems import problem_charts
from hpcbench.reduce.results import Results, SampleSource
from hpcbench.reduce.results_file import open_results
from hpcbench.report.plots.canary import FEWEST_RUNS, draw_canary
from hpcbench.report.plots.curves import draw_chart
from hpcbench.report.plots.heatmap import draw_heatmap, most_telling
from hpcbench.report.plots.roofline import draw_problem
from hpcbench.report.plots.series import charts
from hpcbench.report.plots.steps import draw_steps, step_charts
from hpcbench.report.plots.style import save

IMAGE_FORMATS = ("png", "svg", "pdf")


def plot_file(path: Path, output: Path | None, image_format: str) -> list[Path]:
    """Plot ``results.h5`` (or the folder that holds it) and return the figures' paths.

    ``output`` is a folder; the default is ``plots/`` beside the file. Raises UsageError for an
    unknown format and FileError where no case is ok, because there is nothing to draw.
    """
    if image_format not in IMAGE_FORMATS:
        raise UsageError(f"--format {image_format}: allowed are {', '.join(IMAGE_FORMATS)}")
    folder = output or (path.parent if path.is_file() else path) / "plots"
    with open_results(path) as file:
        figures = plot_results(file.results, file, folder, image_format)
    if not figures:
        raise FileError(f"{path}: no case is ok, so there is nothing to plot; "
                        f"hpcbench show {path} tells why")
    return figures


def plot_results(
    results: Results, source: SampleSource, folder: Path, image_format: str = "png"
) -> list[Path]:
    """Write every figure into ``folder`` and return their paths; none where no case is ok.

    One figure of latency and bus bandwidth per collective (several where one would hold too many
    lines), one of all implementations per problem of a primitive, one of all strategies per model
    and ranks, the rank x iteration map of the most telling case, and the canary if it ran often
    enough. Raises FileError.
    """
    drawings = [(chart.file_stem, draw_chart(chart, results)) for chart in charts(results.cases)]
    comparisons = compare(results.cases)
    drawings += [(chart.file_stem, draw_problem(chart, comparisons, results))
                 for chart in problem_charts(results.cases)]
    drawings += [(chart.file_stem, draw_steps(chart, results))
                 for chart in step_charts(results.cases)]
    telling = most_telling(results.cases)
    samples = source.samples(telling.case.case_id) if telling else None
    if telling and samples is not None and samples.start_ns.size:
        drawings.append(("rank_iteration", draw_heatmap(telling, samples, results)))
    if drawings and results.canary and len(results.canary.runs) >= FEWEST_RUNS:
        drawings.append(("canary", draw_canary(results.canary, results)))
    return [save(figure, folder / f"{stem}.{image_format}", image_format)
            for stem, figure in drawings]
