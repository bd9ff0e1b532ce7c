"""``hpcbench predict``: what a sweep will take on other numbers of ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from hpcbench.commands import flags
from hpcbench.errors import UsageError

if TYPE_CHECKING:
    from hpcbench.prediction.predict import Predictions
    from hpcbench.texts import Verbosity


def predict(
    files: Annotated[list[Path], typer.Argument(
        metavar="RESULTS...", help="results.h5 or its folder; runs on several numbers of ranks.")],
    world_size: Annotated[str, typer.Option(
        "--world-size", metavar="N[..N],...", help="Numbers of ranks; 8..64: by powers of two.")],
    on_node: Annotated[Optional[int], typer.Option(
        "--ranks-per-node", min=1, max=flags.MOST_RANKS, metavar="N",
        help="Ranks of a node; default: as many as were measured on one.")] = None,
    sweep: Annotated[Optional[Path], typer.Option(
        "--sweep", metavar="FILE", rich_help_panel=flags.CASES,
        help="Sweep file to predict; default: those of RESULTS.")] = None,
    model: Annotated[Optional[list[str]], typer.Option(
        "--model", metavar="NAME", autocompletion=flags.models, rich_help_panel=flags.CASES,
        help="Model in place of those of the sweep; repeatable.")] = None,
    strategy: Annotated[Optional[list[str]], typer.Option(
        "--strategy", metavar="NAME", autocompletion=flags.strategies, rich_help_panel=flags.CASES,
        help="Strategy in place of those of the sweep; repeatable.")] = None,
    only: Annotated[Optional[list[str]], typer.Option(
        "--case", metavar="WORDS", rich_help_panel=flags.CASES,
        help="Only cases with these words in their labels; repeatable.")] = None,
    traffic: Annotated[Optional[Path], typer.Option(
        "--traffic", metavar="FILE", rich_help_panel=flags.CASES,
        help="Predict a job's recorded calls instead.")] = None,
    price: flags.PriceOption = None, plot: Annotated[Optional[Path], typer.Option(
        "--plot", metavar="FILE", callback=flags.in_folder,
        help="Also draw times and their parts over ranks (PNG, SVG or PDF).")] = None,
    after: Annotated[Optional[Path], typer.Option(
        "--next", metavar="FILE", callback=flags.in_folder,
        help="Also write the sweep whose run halves the intervals.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: flags.JsonOption = False,
    verbose: flags.VerboseOption = False, quiet: flags.QuietOption = False,
) -> None:
    """Predict times on other numbers of ranks, with intervals.

    Examples:
        hpcbench predict results/2 results/4 results/8 --world-size 64
        hpcbench predict results/* --world-size 8..512 --case "gpt2 fsdp" --json"""
    from hpcbench.gen_config import write_sweep
    from hpcbench.operations.traffic import read_traffic
    from hpcbench.prediction import charts
    from hpcbench.prediction import predict as laws
    from hpcbench.report.answer_lines import opened

    verbosity, ranks = flags.verbosity_of(verbose, quiet), numbers_of_ranks(world_size)
    if traffic and (sweep or model or strategy or only or after or price is not None):
        raise UsageError("--traffic: leave --price and the options of cases away")
    _check_targets(after, plot, force=force)
    verbosity.details([f"reads {path.absolute()}" for path in files])
    with opened(files) as runs, verbosity.stage("laws"):
        names = {key: given for key, given in (("model", model), ("strategy", strategy)) if given}
        sweeps = [] if traffic else laws.sweeps_of(runs, names, sweep)
        every = [*ranks, *(charts.ranks_along(runs, ranks) if plot else ())]
        found = laws.predict_recorded(read_traffic(traffic), runs, every, on_node) if traffic else (
            laws.predict(sweeps, runs, every, only or (), price=price, on_node=on_node))
        if after:
            found = found.noting(write_sweep(laws.next_sweep(sweeps, found.on(ranks).cases), after,
                                             force=force))
        found = charts.draw(found, ranks, runs, plot) if plot else found
    _print(found.on(ranks), verbosity, as_json=as_json)


def _check_targets(next_sweep: Path | None, plot: Path | None, *, force: bool) -> None:
    from hpcbench.gen_config import check_output
    from hpcbench.report.answer_lines import check_plot_name

    if next_sweep:
        check_output(next_sweep, force=force, flag="--next")
    if plot:
        check_plot_name(plot)
        for file in (plot, plot.with_stem(f"{plot.stem}-2")):
            for beside in (file, file.with_suffix(".txt")):
                check_output(beside, force=force, flag="--plot", endings=(beside.suffix,))


def _print(found: Predictions, verbosity: Verbosity, *, as_json: bool) -> None:
    from hpcbench.prediction import present
    from hpcbench.report.terminal import Sentence, print_document, print_lines

    if as_json:
        print_document(present.plain(found))
        return
    table = present.table(found)
    lines = [] if verbosity.is_quiet else [*([table] if table else ()), *(
        Sentence(text) for text in present.sentences(found))]
    print_lines([*lines, Sentence(present.result(found), style="bold")],
                whole=verbosity.is_verbose)


def numbers_of_ranks(text: str) -> list[int]:
    """Return the numbers in ``96,8..64``: ends, and powers of two between. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,6})(?:\.\.(\d{1,6}))?\s*", part, re.ASCII)
        low, high = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= low <= high <= flags.MOST_RANKS:
            raise UsageError(f"--world-size {text}: write numbers of ranks from 1 to "
                             f"{flags.MOST_RANKS}, or ranges of them, as 96,8..64")
        found |= {low, high, *(1 << at for at in range(low.bit_length(), high.bit_length()))}
    return sorted(found)
