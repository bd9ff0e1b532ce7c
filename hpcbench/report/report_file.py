"""The report of one run or of several, written as HTML, PDF or Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hpcbench import __version__
from hpcbench.analysis.answer import Run
from hpcbench.analysis.sides import refuse_twice
from hpcbench.errors import FileError, UsageError
from hpcbench.reduce.results_file import FILE_NAME, open_results
from hpcbench.reduce.suite_file import is_suite, read_suite
from hpcbench.report.contents import document_of
from hpcbench.texts import printable, valid
from hpcbench.trace.files import whole_file
from hpcbench.views.document import Document

FORMATS = {"html": ".html", "pdf": ".pdf", "md": ".md"}
"""Format -> how the names of its files end."""
NAME, LATEST = "report", Path("results/latest")


@contextmanager
def open_runs(paths: Sequence[Path]) -> Iterator[list[Run]]:
    """Yield the runs of results files, folders, and folders of suites.

    Raises FileError, and UsageError for a run that is given twice.
    """
    members = list(_members(paths))
    refuse_twice(members)
    with ExitStack() as opened:
        yield [Run(valid(str(path)), file.results, file) for path in members
               for file in (opened.enter_context(open_results(path)),)]


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder, or the folder itself if it is one. Raises FileError."""
    if (folder / FILE_NAME).exists() or is_suite(folder):
        return [folder]
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; give the one that holds runs, such as results")
    found = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}")
                   if not path.parent.is_symlink())
    if not found:
        raise FileError(f"{folder}: no folder in it has a {FILE_NAME}; hpcbench reduce RUN makes "
                        "one of a run's traces")
    return found


def chosen_format(image_format: str | None, output: Path | None) -> str:
    """Return the format that is asked for, by name or by the ending of a file. Raises UsageError.
    """
    ending = output.suffix if output is not None else ""
    by_ending = next((name for name, end in FORMATS.items() if end == ending), None)
    if image_format is None:
        if ending and by_ending is None:
            raise UsageError(f"-o {output}: a report ends in {', '.join(FORMATS.values())}")
        return by_ending or "html"
    if image_format not in FORMATS:
        raise UsageError(f"--format {image_format}: allowed are {', '.join(FORMATS)}")
    if ending and ending != FORMATS[image_format]:
        raise UsageError(f"-o {output}: a report of format {image_format} ends in "
                         f"{FORMATS[image_format]}")
    return image_format


def output_path(paths: Sequence[Path], output: Path | None, chosen: str) -> Path:
    """Return where a report goes: beside the results of one run, else into this folder."""
    if output is not None:
        return output
    beside = paths[0] if paths[0].is_dir() else paths[0].parent
    return (beside if len(paths) == 1 else Path()) / f"{NAME}{FORMATS[chosen]}"


def write_report(runs: Sequence[Run], chosen: str, target: Path) -> Path:
    """Write the report in this format; the file is absent or whole. Raises FileError, UsageError.
    """
    figures = [f"plots/{path.name}" for path in (target.parent / "plots").glob("*.png")
               if len(runs) == 1]
    content = _content(document_of(runs, full=chosen != "md"), chosen, figures)
    with whole_file(target, make_folder=True) as part:
        part.write_bytes(content)
    return target


def _content(document: Document, chosen: str, figures: Sequence[str]) -> bytes:
    if chosen == "md":
        from hpcbench.report.markdown import markdown_text

        return printable(markdown_text(document, figures)).encode()
    if chosen == "pdf":
        from hpcbench.report.pdf import pdf_bytes

        return pdf_bytes(document)
    from hpcbench.report.html.page import html_text

    return printable(html_text(document, __version__)).encode()


def _members(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the runs; of a suite's folder those of its members that have results."""
    for path in paths:
        if is_suite(path):
            yield from (path / member.folder for member in read_suite(path).members
                        if (path / member.folder / FILE_NAME).exists())
        else:
            yield path
