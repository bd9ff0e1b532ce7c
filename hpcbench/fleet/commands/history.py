"""``hpcbench history``: series over all runs below folders."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import (
    CASES,
    FILES,
    JsonOption,
    QuietOption,
    VerboseOption,
    free_target,
    verbosity_of,
)
from hpcbench.errors import FileError, UsageError
from hpcbench.texts import say
from hpcbench.units import moment, plural

if TYPE_CHECKING:
    from rich.text import Text

    from hpcbench.fleet.history.index import HistoryIndex
    from hpcbench.fleet.history.runs import StoredRuns
    from hpcbench.fleet.history.series import RunHistory
    from hpcbench.views.table import Table

_DAY_S = 86_400


def history(
    folders: Annotated[list[Path], typer.Argument(
        metavar="DIR...", help="Folders; all runs below them count.")],
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=FILES, callback=completion.not_dash,
        help="Also write a report: .html, .pdf or .md.")] = None,
    force: Annotated[bool, typer.Option(
        "--force", rich_help_panel=FILES, help="Replace an existing file.")] = False,
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", metavar="TEXT", rich_help_panel=CASES,
        help="Only cases with these words in their labels, or a pattern; repeatable.")] = None,
    metrics: Annotated[Optional[list[str]], typer.Option(
        "--metric", metavar="NAME", rich_help_panel=CASES,
        help="Column of /cases, as busbw_bytes_per_s; default: median_s; repeatable.")] = None,
    smallest: Annotated[float, typer.Option(
        "--smallest-effect", min=0.001, max=1.0, metavar="SHARE",
        help="Smallest change that matters; default: 0.01.")] = 0.01,
    index: Annotated[Optional[Path], typer.Option(
        "--index", metavar="FILE", rich_help_panel=FILES, callback=completion.not_dash,
        help="Parquet file that keeps what was read and found.")] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Show since when each case is slower, over all runs below folders.

    Examples:
        hpcbench history results
        hpcbench history nightly --only "all_reduce nccl" -o history.html
        hpcbench history nightly --json"""
    from hpcbench.fleet.history.change_points import steps
    from hpcbench.fleet.history.runs import TIME
    from hpcbench.fleet.history.series import history_of
    from hpcbench.fleet.history.views import document, plain
    from hpcbench.report.terminal import print_document, print_lines

    verbosity = verbosity_of(verbose, quiet)
    form = _form(output, force=force) if output is not None else ""
    verbosity.details([f"reads all runs below {folder.absolute()}" for folder in folders])
    kept = _index(index, metrics or (TIME,))
    with verbosity.stage("reading"):
        stored = _stored(folders, metrics or (TIME,), kept)
    with verbosity.stage("change points"):
        found = history_of(stored, smallest, only or (), kept.steps if kept else steps)
    if not found.series:
        raise UsageError(f"--only {' '.join(only or ())}: no case fits")
    if kept and not only and kept.is_stale(stored):
        kept.save(stored)
    if output is not None:
        from hpcbench.report.report_file import write_document

        with verbosity.stage("report"):
            write_document(document(found, ", ".join(map(str, folders))), form, output)
    if as_json:
        print_document(plain(found))
        return
    print_lines(_lines(found, is_quiet=quiet), whole=verbose)
    if output is not None:
        say(str(output))


def _form(output: Path, *, force: bool) -> str:
    """Return the format of a report. Raises FileError for a file that is there, UsageError."""
    from hpcbench.report.report_file import chosen_format

    return chosen_format(None, free_target(output, force=force))


def _index(path: Path | None, metrics: Sequence[str]) -> HistoryIndex | None:
    if path is None:
        return None
    from hpcbench.fleet.history.index import HistoryIndex

    return HistoryIndex(path, metrics)


def _stored(
    folders: Sequence[Path], metrics: Sequence[str] = (), kept: HistoryIndex | None = None,
) -> StoredRuns:
    """Return all runs below folders; name what is left out. Raises FileError without any."""
    from hpcbench.fleet.history.runs import NONE_KNOWN, TIME, read_runs, results_below

    stored = read_runs(results_below(folders), metrics or (TIME,),
                       kept.known if kept else NONE_KNOWN)
    for line in stored.left_out:
        say(f"hpcbench: left out: {line}", sys.stderr)
    if not stored.runs:
        raise FileError(f"{folders[0]}: has no run with a start time below it")
    return stored


def _lines(found: RunHistory, *, is_quiet: bool) -> Iterator[Text | Table]:
    from hpcbench.fleet.history.views import change_table, doubts, fingerprint_table, summary
    from hpcbench.report.terminal import Sentence

    if not is_quiet:
        if found.changes:
            yield change_table(found)
        if len(found.fingerprints) > 1:
            yield fingerprint_table(found)
        for text in doubts(found):
            yield Sentence(text)
    yield Sentence(summary(found), style="bold")


def runs_of(folders: list[Path], period: str) -> list[Path]:
    """Return the runs below folders that began in ``A..B``; B is a whole day, if it is a date.

    Raises UsageError for another period, or one without runs."""
    first, dots, last = period.partition("..")
    begin_s, end_s = (moment(text) if text else end for text, end in (
        (first, -math.inf), (last, math.inf)))
    if not dots or begin_s is None or end_s is None:
        raise UsageError(f"--baseline-range {period}: write FIRST..LAST, as "
                         "2026-01-01..2026-01-31")
    end_s += _DAY_S if len(last) == len("2026-01-31") else 0
    stored = _stored(folders)
    if found := [Path(run.path) for run in stored.runs if begin_s <= run.began_s < end_s]:
        return found
    raise UsageError(f"--baseline-range {period}: none of {plural(len(stored.runs), 'run')} below "
                     f"{', '.join(map(str, folders))} began then")
