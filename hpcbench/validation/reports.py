"""Whether rank 0's machine can write every format of reports."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes.util import find_library
from importlib import metadata

from hpcbench.errors import how_to_install
from hpcbench.report.pdf import PDF_LIBRARIES
from hpcbench.validation.lines import Line, not_applicable, ok, warn
from hpcbench.validation.rank_report import JobReport

_SUBJECT = "PDF reports"


def report_lines(job: JobReport) -> Iterator[Line]:
    """Yield whether reports can be PDF; nothing else needs that."""
    try:
        version = metadata.version("weasyprint")
    except metadata.PackageNotFoundError:
        yield not_applicable(_SUBJECT, f"no WeasyPrint: {how_to_install('pdf')}")
        return
    if find_library("pangoft2-1.0") is None:
        yield warn(_SUBJECT, f"WeasyPrint {version} finds no Pango",
                   f"install {PDF_LIBRARIES}, or write reports as HTML")
    else:
        yield ok(_SUBJECT, f"WeasyPrint {version}")
