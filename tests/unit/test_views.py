"""Tables as renderers get them: raw values, hints of how to show them, columns that say nothing."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from hpcbench.kinds.registry import KindSpec, kinds
from hpcbench.plan.case import Case
from hpcbench.plan.workload import UnknownWorkload
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import case_rows
from hpcbench.report.terminal import print_lines, table_lines, tone_line
from hpcbench.views.presenter import Presenter, presenter_of
from hpcbench.views.table import Cell, Column, Group, Line, Range, Row, Show, Table, cell_text
from results_factory import make_case, make_plan, make_results, not_ok, ok

Capture = pytest.CaptureFixture[str]
SLEEP = UnknownWorkload({"milliseconds": 5, "dtype": "uint8", "groups": 1})


@pytest.mark.parametrize(("cell", "show", "text"), [
    (None, Show.US, "-"), ("?", Show.PERCENT, "?"), (0, Show.COUNT, "0"),
    (1.5e-6, Show.US, "1.50"), (0.25, Show.MS, "250"), (0.0, Show.DURATION, "0 ns"),
    (12.5e9, Show.GB_PER_S, "12.5"), (2**21, Show.MIB, "2.00"), (0.125, Show.PERCENT, "12.5"),
    (-0.0001, Show.PERCENT, "0.0"),
    (-0.625, Show.WHOLE_PERCENT, "-62"), (0.00125, Show.SIGNIFICANT_PERCENT, "0.125"),
    (Range(1e-3, 2e-3), Show.US, "1000..2000"), (Range(2, 8), Show.COUNT, "2..8"),
    (Range(0.5, 1.5, 1), Show.RATIO, "1.00 (0.50..1.50)"),
    (Range(0.9999, 1.0001, 1), Show.RATIO, "1.00"),
])
def test_a_cell_has_one_text(cell: Cell, show: Show, text: str) -> None:
    assert cell_text(cell, show) == text


def make_table(*rows: tuple[Cell, ...]) -> Table:
    columns = (Column("name", "name"), Column("time", "time", Show.US, "us"),
               Column("share", "CI", Show.PERCENT, "+-%", optional=True))
    return Table("block x", columns, (Group("all of one", tuple(map(Row, rows))),),
                 lead=(Line("what it means"),), notes=(Line("one row lacks it", "quiet"),))


def test_values_line_up_below_titles_and_units() -> None:
    lines = [line.plain for line in table_lines(make_table(("a", 1e-3, 0.5), ("long", None, None)))]
    assert lines == [
        "", "block x", "what it means",
        "name  time    CI",
        "      (ms)   +-%",
        "all of one",
        "a     1.00  50.0",
        "long     -     -",
        "  one row lacks it"]


def test_a_table_without_rows_has_no_head() -> None:
    table = replace(make_table(), groups=())
    assert [line.plain for line in table_lines(table)] == [
        "", "block x", "what it means", "  one row lacks it"]


def test_a_terminal_wraps_sentences_below_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one they take 100 columns; it is the stream on which they are printed that is one."""
    line = tone_line(Line("a rank delays the others by 19 % of a call", topic="stragglers"))
    log, terminal = StringIO(), StringIO()
    print_lines([line], log)
    assert log.getvalue().count("\n") == 1
    told = "see what else runs on it, for which `hpcbench show results/latest -v` has evidence; "
    for whole in (False, True):
        print_lines([tone_line(Line(3 * told, topic="HB144"))], log, whole=whole)
    printed = log.getvalue().splitlines()
    assert 90 < max(map(len, printed)) <= 100
    assert log.getvalue().count("hpcbench show results/latest -v") == 6
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "53"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    print_lines([line], terminal)
    first, second = terminal.getvalue().splitlines()
    assert first.endswith(" others by") and second == f"{'':24}19 % of a call"


def test_a_table_that_is_too_wide_leaves_out_details_and_long_texts_go_on_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = (Column("name", "name"), Column("kind", "kind"), Column("same", "same", Show.COUNT),
               Column("spare", "spare", Show.COUNT, first_to_go=True),
               Column("detail", "detail", Show.COUNT, detail=True),
               Column("time", "time", Show.NUMBER))
    table = Table("t", columns, (Group("", tuple(
        Row((name, "x=1 y=2", 7, at, at, 1.5)) for at, name in enumerate(("a", "b")))),))

    def printed(columns: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", columns)
        stream = StringIO()
        print_lines([table], stream, whole=not columns)
        return stream.getvalue().splitlines()[2:]

    assert printed("") == printed("45") == [
        "name  kind     same  spare  detail  time",
        "a     x=1 y=2     7      0       0  1.50",
        "b     x=1 y=2     7      1       1  1.50"]
    assert printed("30") == [
        "  same 7", "name  kind     spare  time", "a     x=1 y=2      0  1.50",
        "b     x=1 y=2      1  1.50", "  left out to fit 30 columns:", "    detail; -v shows all"]
    assert printed("18")[2:6] == [
        "a     x=1     1.50", "        y=2", "b     x=1     1.50", "        y=2"]


def test_a_row_has_one_cell_a_column() -> None:
    with pytest.raises(ValueError, match="table 'block x', row 2: 2 cells for 3 columns"):
        make_table(("a", 1e-3, 0.5), ("b", 1e-3))


def test_optional_columns_without_values_are_left_out() -> None:
    table = make_table(("a", None, None), ("b", None, ""))
    assert [column.name for column in table.without_empty().columns] == ["name", "time"]
    assert [row.cells for row in table.without_empty().rows] == [("a", None), ("b", None)]


def sleeping(**changes: object) -> Case:
    return replace(make_case(), case_id="0123456789ab", kind="sleep", block="naps",
                   workload=SLEEP, **changes)


def test_cases_of_a_kind_that_is_not_installed_have_rows(capsys: Capture, tmp_path: Path) -> None:
    skipped = replace(sleeping(index=1), case_id="0123456789ac")
    results = make_results((ok(sleeping(), 1e-3), not_ok(skipped, "skipped", "no")))
    print_results(results, tmp_path)
    text = capsys.readouterr().out
    (row,) = (line for line in text.splitlines()
              if "milliseconds=5" in line and ".." in line)
    assert "gloo" in row or "sleep" in text
    assert "kind sleep is not installed here" in text
    first, second = case_rows(results)
    assert (first["kind"], first["status"], first["median_s"]) == ("sleep", "ok", 1e-3)
    assert (second["status"], second["busbw_gb_per_s"]) == ("skipped", None)


def test_a_plan_lists_cases_of_any_kind(capsys: Capture) -> None:
    print_plan(make_plan((sleeping(),)))
    assert "milliseconds=5" in capsys.readouterr().out


def test_a_presenter_that_cannot_be_loaded_states_why(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    presenter = KindSpec("sleep").guarded("presenter", "no_such_module:Presenter", Presenter)
    assert "no_such_module" in presenter.problem and presenter.tables("naps", [], {}) is None
    monkeypatch.setattr("hpcbench.report.console.presenter_of", lambda kind: presenter)
    print_results(make_results((ok(sleeping(), 1e-3),)), tmp_path)
    assert "no_such_module:Presenter cannot be loaded" in capsys.readouterr().out


def test_every_kind_presents_itself() -> None:
    for kind in kinds():
        assert type(presenter_of(kind)) is not Presenter


def test_what_all_rows_share_stands_above_them_and_their_names_and_times_stay() -> None:
    columns = tuple(Column(name, name, unit=unit) for name, unit in (
        ("#", ""), ("what", ""), ("ranks", ""), ("root", ""), ("size", "MiB"), ("s", "a pass")))
    rows = tuple(Row((str(number), "x", "4", None, size, "1")) for number, size in enumerate("12"))
    found = Table("t", columns, (Group("", rows),)).shared_above()
    assert [column.name for column in found.columns] == ["#", "what", "size", "s"]
    assert [line.text.strip() for line in found.lead] == ["ranks 4"]
    alone = Table("t", columns, (Group("", rows[:1]),)).shared_above()
    assert [line.text.strip() for line in alone.lead] == ["ranks 4, size (MiB) 1"]
    twice = tuple(Column(name, title) for name, title in (
        ("#", "#"), ("w", "w"), ("a", "a"), ("a_dev", "dev."), ("b", "b"), ("b_dev", "dev."),
        ("s", "s")))
    of_which = Table("t", twice, (Group("", tuple(
        Row((at, at, at, "0", at, "1", at)) for at in "12")),)).shared_above()
    assert [line.text.strip() for line in of_which.lead] == ["a dev. 0, b dev. 1"]
    apart = Table("t", columns[:2], (Group("", (Row(("0", "x")), Row(("1", "y")))),))
    assert apart.shared_above() == apart


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    table = Table("narrow", (Column("size", "size"), Column("words", "words")), (Group("", (
        Row(("8.95 GB", "several words that wrap in so few columns")),)),))
    lines = [line.plain for line in table_lines(table, 20)]
    assert any("8.95 GB" in line for line in lines)
