"""A report as PDF: real pages with the verdict, embedded fonts, and nothing fetched."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from hpcbench.answers.answer import Run
from hpcbench.errors import UsageError
from hpcbench.report.report_file import document_of, pdf_bytes, write_report
from results_factory import MemorySamples, mixed_results


def test_pages_have_the_verdict_and_their_fonts() -> None:
    try:
        import weasyprint  # noqa: F401
    except (ImportError, OSError) as error:
        assert "CI" not in os.environ
        pytest.skip(f"no WeasyPrint: {error}")
    pypdf = pytest.importorskip("pypdf", reason="no WeasyPrint: pypdf is missing")
    results = mixed_results()
    document = document_of([Run("run", results, MemorySamples(results))])
    read = pypdf.PdfReader(io.BytesIO(pdf_bytes(document)))
    first = read.pages[0].extract_text()
    assert all(words in first for words in ("Verdict", "measured", "Best settings"))
    assert any("hpcbench show" in page.extract_text() for page in read.pages)
    assert f"1 / {len(read.pages)}" in first
    for page in read.pages:
        for font in (page["/Resources"].get("/Font") or {}).values():
            parts = font.get_object().get("/DescendantFonts", [font])[0].get_object()
            assert any(name.startswith("/FontFile") for name in parts["/FontDescriptor"])


def test_without_the_extra_it_is_one_line_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    results = mixed_results()
    with pytest.raises(UsageError, match=r"--format pdf needs WeasyPrint: pip install"):
        write_report([Run("run", results, MemorySamples(results))], "pdf", tmp_path / "r.pdf")
    assert list(tmp_path.iterdir()) == []
