"""Tables as renderers get them: raw values, digits, labels, columns that say nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.answers.topics import case_names
from hpcbench.kinds.registry import KindSpec, kinds
from hpcbench.plan.case import Case
from hpcbench.plan.workload import UnknownWorkload
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import case_rows
from hpcbench.report.terminal import fitted, print_lines, table_lines, tone_line
from hpcbench.units import format_seconds, round_bytes, three_digits, vary
from hpcbench.views.labels import (
    distinct_names,
    own_words,
    short_labels,
    shortened,
    without_shared,
)
from hpcbench.views.presenter import Presenter, presenter_of
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    WithInterval,
    cell_text,
    format_measured,
    format_number,
    time_texts,
)
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
        "  all rows: same 7", "name  kind     spare  time", "a     x=1 y=2      0  1.50",
        "b     x=1 y=2      1  1.50", "  left out to fit 30 columns:", "    detail; -v shows all"]
    assert printed("18")[2:6] == [
        "a     x=1     1.50", "        y=2", "b     x=1     1.50", "        y=2"]


def test_a_left_out_column_has_its_span_where_another_one_of_the_title_stays() -> None:
    columns = (Column("case", "case"), *(Column(f"busbw-{span}", "busbw", Show.NUMBER, span=span,
                                                first_to_go=True) for span in ("gloo", "mpi")))
    table = Table("t", columns, (Group("", (Row(("sum", 1.5, 2.5)),)),))
    assert [fitted(table, width).notes[0].text.split(": ")[1].split(";")[0]
            for width in (12, 7)] == ["mpi busbw", "busbw"]


def test_shared_arguments_stand_in_a_title_with_their_names() -> None:
    columns = (Column("function", "function"), Column("elements", "elements", named=True),
               Column("type", "type"), Column("time", "time", Show.NUMBER))
    rows = tuple(Row((name, "4096", "fp32", 1.5)) for name in ("a", "b"))
    assert Table("f", columns, (Group("", rows),)).brief().title == "f, elements=4096, fp32"


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
    assert [line.text.strip() for line in found.lead] == ["all rows: ranks 4"]
    alone = Table("t", columns, (Group("", rows[:1]),)).shared_above()
    assert [line.text.strip() for line in alone.lead] == ["ranks 4, size (MiB) 1"]
    twice = tuple(Column(name, title) for name, title in (
        ("#", "#"), ("w", "w"), ("a", "a"), ("a_dev", "dev."), ("b", "b"), ("b_dev", "dev."),
        ("s", "s")))
    of_which = Table("t", twice, (Group("", tuple(
        Row((at, at, at, "0", at, "1", at)) for at in "12")),)).shared_above()
    assert [line.text.strip() for line in of_which.lead] == ["all rows: a dev. 0, b dev. 1"]
    apart = Table("t", columns[:2], (Group("", (Row(("0", "x")), Row(("1", "y")))),))
    assert apart.shared_above() == apart


def test_words_that_all_rows_have_in_place_of_a_number_keep_their_note_but_no_unit() -> None:
    columns = (Column("#", "#"), Column("what", "what"),
               Column("share", "share", Show.PERCENT, "%"), Column("s", "s"))
    rows = tuple(Row((at, at, "unclear", at)) for at in "12")
    notes = (Line("why", about=("share",)), Line("of s", about=("s",)))
    found = Table("t", columns, (Group("", rows),), notes=notes).shared_above()
    assert [line.text.strip() for line in found.lead] == ["all rows: share unclear"]
    assert [note.text for note in found.with_columns([0, 1]).notes] == ["why"]


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    table = Table("narrow", (Column("size", "size"), Column("words", "words")), (Group("", (
        Row(("8.95 GB", "several words that wrap in so few columns")),)),))
    lines = [line.plain for line in table_lines(table, 20)]
    assert any("8.95 GB" in line for line in lines)


@pytest.mark.parametrize(("low", "value", "high", "shown"), [
    (2905.4, 3453.3, 3885.9, ("2910", "3450", "3890")),
    (19.47, 19.65, 19.94, ("19.47", "19.65", "19.94")),
    (16.30, 16.59, 19.90, ("16.3", "16.6", "19.9")),
    (405.2, 886.43, 1780.4, ("410", "890", "1780")),
    (15.9, 15.93, 48.1, ("16", "16", "48")),
    (0.00123, 0.00125, 0.00131, ("0.00123", "0.00125", "0.00131")),
    (3.0, 3.2, 4000.0, ("3.0", "3.2", "4000")),
    (5.0, 5.0, 5.0, ("5.00", "5.00", "5.00"))])
def test_half_the_interval_keeps_two_digits(
    low: float, value: float, high: float, shown: tuple[str, str, str],
) -> None:
    assert tuple(format_measured(one, low, high) for one in (low, value, high)) == shown


def test_a_median_and_its_interval_have_the_same_last_digit() -> None:
    cell = WithInterval(3453.3e-6, 2905.4e-6, 3885.9e-6)
    assert cell_text(cell, Show.US) == "3450"
    assert cell_text(Range(cell.low, cell.high), Show.US) == "2910..3890"
    assert cell_text(cell, Show.MS) == "3.45"
    assert cell_text(Range(0.1, 0.2, 0.1234), Show.PERCENT) == "12.3 (10.0..20.0)"


def test_without_an_interval_times_and_rates_have_three_digits() -> None:
    assert [cell_text(time_s, Show.US) for time_s in (10794.9e-6, 587.51e-6, 41.28e-6)] == [
        "10800", "588", "41.3"]
    assert cell_text(123.45e9, Show.GB_PER_S) == "123"


def test_a_time_in_its_own_unit_has_the_digits_of_a_table() -> None:
    assert time_texts(590e-6, 494e-6, 776e-6) == ("590 us", "490..780")
    assert time_texts(1.23e-3, None, None) == ("1.23 ms", "-")


@given(st.floats(1e-6, 1e9), st.floats(0, 1e9), st.floats(0, 1e9))
def test_what_is_left_out_is_less_than_the_interval(
    value: float, below: float, above: float,
) -> None:
    low, high = max(value - below, 0.0), value + above
    text = format_measured(value, low, high)
    half = (high - low) / 2
    assert len(text) <= len(format_number(value))
    assert abs(float(text) - float(format_number(value))) <= max(0.06 * half, 0.06 * value)
    assert math.isfinite(float(text)) and float(text) > 0


@pytest.mark.parametrize(("value", "text"), [
    (1402.6, "1400"), (3352.0, "3350"), (1.23e7, "12300000"), (0.08341, "0.0834"), (2.5, "2.5"),
    (-999.9, "-1000"), (1e-5, "0.00001"), (0.0, "0"), (math.nan, "nan")])
def test_numbers_in_sentences_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_durations_and_sizes_have_no_exponent_either() -> None:
    found = [format_seconds(one) for one in (1234.5, 0.9996, 1.5e-5)]
    assert found == ["1230 s", "1000 ms", "15 us"]
    assert round_bytes(1023 * 2**20 + 2**19) == "1020 MiB"


LABELS = ("all_reduce gloo cpu fp32 8B n=2", "all_reduce gloo cpu fp32 8B n=2 isolated",
          "all_reduce mpi cpu fp32 8B n=2", "transformer gloo cpu fp32 dp=2 n=2")


def test_words_that_all_of_a_title_have_are_left_out() -> None:
    assert short_labels(LABELS) == {
        LABELS[0]: "all_reduce gloo", LABELS[1]: "all_reduce gloo isolated",
        LABELS[2]: "all_reduce mpi", LABELS[3]: "transformer"}
    assert short_labels([]) == {} and short_labels(["barrier"]) == {"barrier": "barrier"}


def test_a_size_is_left_out_only_where_all_have_it() -> None:
    assert [*short_labels(["sum gloo 8B", "sum gloo 9B", "sum mpi 8B"]).values()] == [
        "sum gloo 8B", "sum gloo 9B", "sum mpi 8B"]


def test_a_name_of_several_words_is_kept_whole() -> None:
    labels = [f"{name} bytes=4096 ranks=1" for name in (
        "load", "load fp32 weights", "load fp32 biases", "my all_reduce", "x=1 y")]
    names = ["load", "load fp32 weights", "load fp32 biases", "my all_reduce", "x=1 y"]
    assert [*short_labels(labels, names).values()] == names
    own = make_case(UnknownWorkload({"name": names[1]}))
    assert [*case_names([make_results((not_ok(own, "failed", ""),))]).values()] == [names[1]]


def test_a_label_that_begins_as_another_one_is_replaced_as_a_whole() -> None:
    text = f"{LABELS[1]} and {LABELS[0]} beside {LABELS[3]}"
    assert shortened(text, short_labels(LABELS)) == (
        "all_reduce gloo isolated and all_reduce gloo beside transformer")


def test_equal_titles_get_the_words_that_distinguish_them() -> None:
    assert distinct_names([("torch", ("a=1", "gloo")), ("ring", ("a=1", "gloo")),
                       ("ring", ("a=2", "gloo"))]) == ["torch", "ring a=1", "ring a=2"]
    assert distinct_names([]) == []


def test_what_all_labels_have_is_stated_once() -> None:
    assert without_shared(["mlp torch fp32", "mlp ring fp32"]) == ("mlp fp32", ["torch", "ring"])
    assert without_shared(["mlp fp32", "mlp ring fp32"]) == ("mlp fp32", ["mlp", "ring"])
    assert without_shared(["mlp torch"]) == ("", ["mlp torch"])
    assert without_shared([]) == ("", []) and without_shared([""]) == ("", [""])
    assert without_shared(["x 4 4", "x 4"]) == ("", ["x 4 4", "x 4"])


def test_what_rows_share_stands_in_the_order_of_the_first_and_what_each_has_beside() -> None:
    assert vary(["ab", "bc", "cb"]) == (["b"], [["a"], ["c"], ["c"]])
    assert vary([["b", "a"], ["a", "b"]]) == (["b", "a"], [[], []]) and vary([]) == ([], [])
    rows = map(enumerate, (("x", 1), ("x", 2), ("x", 1)))
    assert vary(rows) == ([(0, "x")], [[(1, 1)], [(1, 2)], [(1, 1)]])
    assert own_words(["ring a=1 b", "tree a=2 b", ""]) == ["ring a=1 b", "tree a=2 b", ""]
    assert own_words(["ring a=1 b", "tree a=2 b"]) == ["ring a=1", "tree a=2"]
