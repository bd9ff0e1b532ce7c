"""What people read of primitives: tables, plans, skips, and the numbers in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import write_summary
from hpcbench.texts import Verbosity
from results_factory import (
    all_ok,
    in_passes,
    make_case,
    make_plan,
    make_primitive,
    make_primitive_case,
    make_results,
    not_ok,
    ok,
    print_all,
    rows_with,
)

Capture = pytest.CaptureFixture[str]


def case(index: int, implementation: str, *, shape: str = "", **options: Any) -> Case:
    order = options.pop("order", "")
    work = make_primitive(implementation, order=order, shape=shape, **options)
    return make_primitive_case(work, index=index)


def comparison() -> Results:
    """Return all parts and an implementation that hides half of its communication."""
    cases = (case(0, "chunked_pipeline", chunks=2), case(1, "torch"), case(2, "comm_only"),
             case(3, "compute_only"), case(4, "chunked_pipeline", chunks=4))
    medians = ((8e-3, 16e-3), (10e-3, 20e-3), (4e-3, 8e-3), (6e-3, 12e-3), (11e-3, 12e-3))
    return make_results(tuple(
        in_passes(item, *times) for item, times in zip(cases, medians, strict=True)))


def table(text: str, block: str = "primitives") -> list[str]:
    """Return the lines of a block's table."""
    lines = text.split(f"block {block}\n")[1].splitlines()
    return lines[:lines.index("")]


def test_the_table_of_primitives(capsys: Capture, tmp_path: Path) -> None:
    print_all(comparison(), tmp_path)
    lines = table(capsys.readouterr().out)
    assert lines[0].split() == [
        "implementation", "options", "time", "p50", "95", "%", "CI", "per", "rank", "all",
        "ranks", "busbw", "exposed", "overlap", "x", "longest", "x", "torch", "#wrong", "n",
        "status"]
    assert " ".join(lines[1].split()) == (
        "(ms) (ms) (TFLOP/s) (TFLOP/s) (GB/s) (ms) %, range (range)"), "of passes, no interval"
    assert lines[2] == ("tp_columnwise AG_before  gloo (cpu)  4 ranks  fp32  m=4096 n=1024 k=512  "
                        "weight=sharded  isolated, fold global")
    # flops 1.07e9 a rank; 8 MiB gathered by 4 ranks in 8 ms; medians are those of the later pass
    assert [line.removesuffix("       0  20  ok").split() for line in lines[3:8]] == [
        ["compute_only", "size=sharded", "12.00", "11.88..12.24", "0.0895",
         "0.358", "-", "-", "-", "-", "-"],
        ["comm_only", "8.00", "7.92..8.16", "-", "-", "0.786", *["-"] * 4],
        ["chunked_pipeline", "chunks=2", "16.00", "15.84..16.32", "0.0671",
         "0.268", "-", "3.0", "50", "1.33", "1.25"],
        ["torch", "20.00", "19.80..20.40", "0.0537", "0.215", "-", "6.0", "0",
         "1.67", "1.00"],
        ["chunked_pipeline", "chunks=4", "12.00", "11.88..12.24", "0.0895",
         "0.358", "-", *["unclear"] * 4],  # 38 (-25..100) %, 1.29 (0.91..1.67)
    ]
    assert "medians over passes" in lines[8]
    assert " ".join(" ".join(lines[9:]).split()) == (
        "tp_columnwise chunked_pipeline chunks=4: exposed unclear: 0 ns to 5 ms in 2 passes; "
        "t 12 ms, t(compute_only) 12 ms, t(comm_only) 8 ms")


def test_a_single_case_shows_all_of_its_options_and_why_it_is_not_compared(
    capsys: Capture, tmp_path: Path,
) -> None:
    named = case(0, "torch", shape="llama3-8b mlp_up tp=4")
    print_all(make_results((in_passes(named, 1e-3),)), tmp_path)
    lines = table(capsys.readouterr().out)
    assert lines[2].endswith("m=4096 n=1024 k=512 llama3-8b mlp_up tp=4  isolated, fold global")
    assert "weight=sharded" in lines[3]
    assert [line.partition(" of ")[0] for line in lines[4:] if line[2] != " "] == [
        f"  1 row not compared: {name}" for name in ("compute_only", "comm_only")]


def test_orders_stand_together_and_failed_rows_have_no_numbers(
    capsys: Capture, tmp_path: Path,
) -> None:
    cases = (case(0, "torch"), case(1, "torch", order="AG_after"), case(2, "compute_only"),
             case(3, "comm_only", order="AG_after"))
    items = (in_passes(cases[0], 2e-3), not_ok(cases[1], "failed", "no memory", blamed_rank=1),
             in_passes(cases[2], 1e-3), in_passes(cases[3], 1e-3))
    print_all(make_results(items), tmp_path)
    text = capsys.readouterr().out
    before, compute, torch, after, comm, failing = (line.split() for line in table(text)[2:8])
    assert [before[1], compute[0], torch[0]] == ["AG_before", "compute_only", "torch"]
    assert [after[1], comm[0], failing[0]] == ["AG_after", "comm_only", "torch"]
    (failed,) = rows_with(text, "failed")
    assert failed == failing and failed[-12:] == ["-"] * 11 + ["failed"]


def test_options_that_an_order_decides_stand_in_its_heading(
    capsys: Capture, tmp_path: Path,
) -> None:
    cases = [case(2 * at + add, name, order=order, weight=weight)
             for at, (order, weight) in enumerate((("AG_before", "sharded"),
                                                   ("AG_after", "replicated")))
             for add, name in enumerate(("compute_only", "chunked_pipeline"))]
    print_all(make_results(tuple(in_passes(item, 1e-3) for item in cases)), tmp_path)
    lines = table(capsys.readouterr().out)
    assert "AG_before" in lines[2] and "weight=sharded" in lines[2]
    assert "AG_after" in lines[5] and "weight=replicated" in lines[5]
    assert [lines[at].split()[:2] for at in (3, 4, 6, 7)] == 2 * [
        ["compute_only", "size=sharded"], ["chunked_pipeline", "chunks=4"]]


def test_definitions_are_of_what_is_shown(capsys: Capture, tmp_path: Path) -> None:
    primitive, collective = ok(case(0, "torch")), ok(make_case(index=1))
    for items, words in (((primitive,), (True, False)), ((collective,), (False, True)),
                         ((primitive, collective), (True, True))):
        print_all(make_results(items), tmp_path, explain=True)
        head = capsys.readouterr().out.split("\nblock ", 1)[0]
        assert ("overlap = (t(compute_only) + t(comm_only) - t)" in head,
                "algbw = size / time p50" in head) == words


def test_primitives_and_collectives_have_tables_of_their_own(
    capsys: Capture, tmp_path: Path,
) -> None:
    print_all(make_results((ok(case(0, "torch")), ok(make_case(index=1)))), tmp_path)
    text = capsys.readouterr().out
    assert table(text)[0].startswith("implementation")
    assert "algbw" in table(text, "quick")[0]
    assert "2 of 2 cases measured" in text


def test_skips_name_their_problems(capsys: Capture, tmp_path: Path) -> None:
    items: tuple[CaseResult, ...] = tuple(
        not_ok(make_primitive_case(make_primitive(name, mnk=(m, 64, 32)), index=index), "skipped",
               "not here")
        for index, (name, m) in enumerate((("torch", 64), ("p2p_ring", 128))))
    print_all(make_results(items), tmp_path)
    text = capsys.readouterr().out
    assert "2 skipped: 2 x not here" in text and "tp_columnwise p2p_ring" in text


def test_a_plan_lists_its_primitives(capsys: Capture) -> None:
    cases = [case(0, "torch"), case(1, "chunked_pipeline", chunks=8), make_case(index=2)]
    print_plan(make_plan(tuple(cases)), Verbosity.VERBOSE)
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("block primitives") + 1
    assert lines[first].split()[:7] == ["#", "primitive", "implementation", "order", "options",
                                        "backend", "device"]
    row = lines[first + 3].split()
    assert row[:13] == [
        "1", "tp_columnwise", "chunked_pipeline", "AG_before", "chunks=8", "weight=sharded", "gloo",
        "cpu", "4", "fp32", "4096", "1024", "512"]
    assert row[-4:] == ["20", "isolated", "500", "ms"]
    assert "block quick" in lines


def test_a_long_plan_has_a_line_for_each_implementation(capsys: Capture) -> None:
    cases = tuple(make_primitive_case(make_primitive("torch", mnk=(64 * (1 + at), 64, 32)),
                                      index=at) for at in range(70))
    print_plan(make_plan(cases))
    lines = capsys.readouterr().out.splitlines()
    block = lines[lines.index("block primitives") + 1:]
    assert len([line for line in block if line.split()[:2] == ["70", "tp_columnwise"]]) == 1
    shared = " ".join(" ".join(block).split())
    assert "implementation torch, orders AG_before" in shared and "64..4480" in shared


def test_the_same_numbers_stand_in_table_and_files(capsys: Capture, tmp_path: Path) -> None:
    results = comparison()
    write_summary(results, tmp_path)
    print_all(results, tmp_path)
    assert capsys.readouterr().out.count("unclear") >= 4
    text = (tmp_path / "summary.csv").read_text()
    assert "1.3333333333333" in text and "1.25" in text
    assert "1.28787878" in text, "what is unclear in the table stays in the files"


def test_no_primitive_no_change(capsys: Capture, tmp_path: Path) -> None:
    print_all(all_ok((make_case(),)), tmp_path)
    assert "overlap" not in capsys.readouterr().out
