"""A document as PDF, by WeasyPrint: the pages of its HTML without a script."""

from __future__ import annotations

from hpcbench import __version__
from hpcbench.errors import UsageError, how_to_install
from hpcbench.report.document import ReportDocument

PDF_LIBRARIES = "Pango 1.44 and HarfBuzz (Debian: libpango-1.0-0 libpangoft2-1.0-0 " \
                "libharfbuzz-subset0)"


def pdf_bytes(document: ReportDocument) -> bytes:
    """Return the document as PDF. Raises UsageError where what makes it is not there."""
    try:
        import weasyprint
    except ImportError as error:
        raise UsageError(f"--format pdf needs WeasyPrint: {how_to_install('pdf')}") from error
    except OSError as error:
        raise UsageError(f"--format pdf: WeasyPrint cannot load a library of the system "
                         f"({str(error).splitlines()[0]}); install {PDF_LIBRARIES}") from error
    from hpcbench.report.html.page import html_text

    text = html_text(document, __version__, scripted=False)
    return bytes(weasyprint.HTML(string=text).write_pdf())
