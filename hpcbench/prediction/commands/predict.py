"""``hpcbench predict``: what a sweep will take on other numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import (
    CASES,
    MOST_RANKS,
    JsonOption,
    QuietOption,
    VerboseOption,
    verbosity_of,
)
from hpcbench.errors import UsageError

if TYPE_CHECKING:
    from hpcbench.answers.answer import Run
    from hpcbench.config.schema import Config
    from hpcbench.operations.traffic import TrafficRecord


def predict(
    files: Annotated[list[Path], typer.Argument(
        metavar="RESULTS...", help="results.h5 or its folder; runs on several numbers of ranks.")],
    world_size: Annotated[str, typer.Option(
        "--world-size", metavar="N[,N...]", help="Numbers of ranks to predict for.")],
    on_node: Annotated[Optional[int], typer.Option(
        "--ranks-per-node", min=1, max=MOST_RANKS, metavar="N",
        help="Ranks of a node; default: as many as were measured on one.")] = None,
    sweep: Annotated[Optional[Path], typer.Option(
        "--sweep", metavar="FILE", rich_help_panel=CASES,
        help="Sweep file to predict; default: those of RESULTS.")] = None,
    model: Annotated[Optional[list[str]], typer.Option(
        "--model", metavar="NAME", autocompletion=completion.models, rich_help_panel=CASES,
        help="Model in place of those of the sweep; repeatable.")] = None,
    strategy: Annotated[Optional[list[str]], typer.Option(
        "--strategy", metavar="NAME", autocompletion=completion.strategies,
        rich_help_panel=CASES,
        help="Strategy in place of those of the sweep; repeatable.")] = None,
    only: Annotated[Optional[list[str]], typer.Option(
        "--case", metavar="WORDS", rich_help_panel=CASES,
        help="Only cases with these words in their labels; repeatable.")] = None,
    traffic: Annotated[Optional[Path], typer.Option(
        "--traffic", metavar="FILE", rich_help_panel=CASES,
        help="Predict a job's recorded calls instead.")] = None,
    price: Annotated[Optional[float], typer.Option(
        "--price", min=0.0, metavar="PRICE", help="Price of a device for an hour.")] = None,
    plot: Annotated[Optional[Path], typer.Option(
        "--plot", metavar="FILE", callback=completion.in_folder,
        help="Also draw times and their parts over ranks (PNG, SVG or PDF).")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Predict times on other numbers of ranks, with intervals.

    Examples:
        hpcbench predict results/2 results/4 results/8 --world-size 64
        hpcbench predict results/* --world-size 64,512 --case "gpt2 fsdp"
        hpcbench predict results/* --world-size 512 --json"""
    from hpcbench.prediction import charts, present
    from hpcbench.prediction.predict import predict as predictions
    from hpcbench.prediction.predict import predict_recorded
    from hpcbench.report.answer_lines import check_plot_name, opened
    from hpcbench.report.terminal import Sentence, print_document, print_lines

    verbosity = verbosity_of(verbose, quiet)
    verbosity.details([f"reads {path.absolute()}" for path in files])
    if traffic and (sweep or model or strategy or only):
        raise UsageError("--traffic: predicts recorded calls; leave the options of cases away")
    ranks = _numbers(world_size)
    if plot:
        check_plot_name(plot)
    with opened(files) as runs, verbosity.stage("laws"):
        predicted = partial(predict_recorded, _record(traffic), runs, on_node=on_node) if (
            traffic) else partial(predictions, _sweeps(runs, sweep, model, strategy), runs,
                                  only=only or (), price=price, on_node=on_node)
        every = predicted([*ranks, *(charts.ranks_along(runs, ranks) if plot else ())])
        asked = tuple(one for one in every.cases if one.ranks in ranks)
        found = replace(every, cases=asked) if asked else predicted(ranks)
    if plot:
        from hpcbench.report.plots import plot_numbered

        origin = f"predicted from {', '.join(map(str, files))}"
        verbosity.details(f"draws {path}" for path in plot_numbered(
            [*charts.charts(every, ranks)], origin, plot))
    if as_json:
        print_document(present.plain(found))
        return
    table = present.table(found)
    lines = [table] if table and not quiet else []
    told = [] if quiet else [Sentence(text) for text in present.sentences(found)]
    print_lines([*lines, *told, Sentence(present.result(found), style="bold")], whole=verbose)


def _record(path: Path) -> TrafficRecord:
    from hpcbench.operations.traffic import read_traffic

    return read_traffic(path)


def _sweeps(
    runs: Sequence[Run], sweep: Path | None, model: list[str] | None, strategy: list[str] | None,
) -> list[Config]:
    """Return the sweeps to predict, with the named models and strategies. Raises ConfigError."""
    from hpcbench.config.load import load_config
    from hpcbench.prediction.predict import sweeps_of

    names = {key: given for key, given in (("model", model), ("strategy", strategy)) if given}
    return [load_config(sweep, [*names.items()])] if sweep else sweeps_of(runs, names)


def _numbers(text: str) -> list[int]:
    """Return the numbers in ``8,64``. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_RANKS for part in parts):
        raise UsageError(f"--world-size {text}: write numbers of ranks from 1 to {MOST_RANKS}, "
                         "separated by commas, as 64,512")
    return sorted({int(part) for part in parts})
