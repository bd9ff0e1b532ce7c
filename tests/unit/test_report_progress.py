"""Progress: a flushed line for each finished case in a log, a bar on a terminal."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO

import pytest

from hpcbench.report.console import print_corrections
from hpcbench.report.terminal import Progress, open_console
from results_factory import make_case, make_results, not_ok, ok, sweep


class Log(io.StringIO):
    """Remembers what had been written when it was flushed."""

    flushed = ""

    def flush(self) -> None:
        self.flushed = self.getvalue()


@contextmanager
def terminal() -> Iterator[tuple[TextIO, int]]:
    reader, writer = pty.openpty()
    try:
        with os.fdopen(writer, "w") as stream:
            yield stream, reader
    finally:
        os.close(reader)


def test_below_open_mpi_only_force_color_makes_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mpirun gives every rank a terminal, also where its own output goes to a file."""
    for name in ("FORCE_COLOR", "NO_COLOR", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "133")
    with terminal() as (stream, _):
        assert open_console(stream).is_terminal and open_console(stream).width == 133
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        assert not open_console(stream).is_terminal
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert open_console(stream).is_terminal


def test_a_message_wraps_at_the_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    log = Log()
    with Progress(sweep(sizes=(8,)), log) as progress:
        progress.message("a word " * 12)
    assert "a word a word a\n    word a word" in log.getvalue()


def test_log_lines_count_name_and_time_each_case() -> None:
    log, cases = Log(), sweep(sizes=(8,))
    with Progress(cases, log) as progress:
        progress.case_done(cases[0], "ok", "", 1.234e-3)
        progress.case_done(cases[1], "failed", "rank 1: worker killed by signal 9", 0.5)
    assert log.getvalue().splitlines() == [
        "[1/4] ok      all_reduce gloo  took 1.23 ms",
        "[2/4] failed  all_reduce mpi  took 500 ms  rank 1: worker killed by signal 9",
    ]


def test_failures_name_launch_and_pass_where_there_are_several() -> None:
    case = make_case()
    for passes, launches, which in ((1, 1, ""), (3, 1, "  pass 2/3"),
                                    (3, 2, "  launch 1/2 pass 2/3"), (1, 2, "  launch 1/2")):
        log = Log()
        with Progress((case,) * 6, log, passes=passes, launches=launches) as progress:
            progress.case_done(case, "failed", "why", 0.5, launch=0, pass_index=1)
        assert log.getvalue() == (
            f"failed  all_reduce{which}  took 500 ms  why\n")


def test_a_log_has_one_line_a_case_after_its_last_pass_and_now_and_then_the_time_left() -> None:
    log, now_s = Log(), [0.0]
    cases = [replace(case, estimate_s=1.0) for case in sweep(("all_reduce",), ("gloo",), (8, 64))]
    with Progress(cases * 3, log, passes=3, clock=lambda: now_s[0]) as progress:
        for pass_index in range(3):
            for case in cases:
                now_s[0] += 6.0
                progress.case_done(case, "ok", "", 6.0, pass_index=pass_index)
    assert log.getvalue().splitlines() == [
        "pass 1/3  2 of 6 runs of cases done  about 24 s left",
        "pass 1/3  took 12 s, 6 times its estimate: about 36 s in all, not 6 s",
        "pass 2/3  4 of 6 runs of cases done  about 12 s left",
        "[1/2] ok      all_reduce 8B  took 18 s",
        "[2/2] ok      all_reduce 64B  took 18 s",
    ]


@pytest.mark.parametrize(("earlier", "runs", "said", "line"), [
    ((), ("failed", "ok"), "failed", "[1/1] failed  all_reduce  took 1 s  pass 1/2  why 0"),
    ((), ("timeout", "failed"), "timeout", "[1/1] timeout all_reduce  took 1 s  pass 1/2  why 0"),
    ((), ("ok", "failed"), "failed", "[1/1] failed  all_reduce  pass 2/2  took 500 ms  why 1"),
    ((), ("ok", "not_run"), "ok", "[1/1] ok      all_reduce  took 1 s  pass 2/2  not_run: why 1"),
    ((), ("not_run",), "not_run", "[1/1] not_run all_reduce  took 500 ms  why 0"),
    (("failed",), ("ok",), "failed",
     "[1/1] failed  all_reduce  took 500 ms  in an earlier attempt"),
    (("ok",), ("wrong",), "wrong", "[1/1] wrong   all_reduce  pass 1/2  took 500 ms  why 0"),
    (("ok", "ok"), ("ok",), "ok", "[1/1] ok      all_reduce  took 500 ms")])
def test_the_line_of_a_case_says_its_status_over_all_passes_and_attempts(
    earlier: tuple[str, ...], runs: tuple[str, ...], said: str, line: str,
) -> None:
    log, case = Log(), make_case()
    with Progress((case,) * len(runs), log, passes=2) as progress:
        progress.earlier = {case.case_id: earlier}
        for number, status in enumerate(runs):
            reason = "" if status == "ok" else f"why {number}"
            progress.case_done(case, status, reason, 0.5, pass_index=number)
    assert log.getvalue().splitlines()[-1] == line
    assert progress.said == {case.case_id: said}


def test_a_case_that_ends_otherwise_than_its_line_said_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sound, rejected, unsaid = sweep(("all_reduce",), ("gloo",), (8, 64, 512))
    results = make_results([
        ok(sound), not_ok(rejected, "failed", "HB117: why"), not_ok(unsaid, "failed", "why")])
    print_corrections(results, {sound.case_id: "ok", rejected.case_id: "ok"})
    assert capsys.readouterr().out == f"corrected: {rejected.label}: failed, not ok: HB117: why\n"


def corrections(took_s: float, estimate_s: float, between_s: float = 0.0) -> list[str]:
    """Return what is said of the whole by a sweep of 3 passes x 2 cases that take so long each."""
    log, now_s = Log(), [0.0]
    cases = [replace(case, estimate_s=estimate_s)
             for case in sweep(("all_reduce",), ("gloo",), (8, 64))]
    with Progress(cases * 3, log, passes=3, clock=lambda: now_s[0]) as progress:
        progress.slow_reason = "2 ranks a core"
        for pass_index in range(3):
            for case in cases:
                now_s[0] += took_s + between_s
                progress.case_done(case, "ok", "", took_s, pass_index=pass_index)
    return [line for line in log.getvalue().splitlines() if "in all" in line]


def test_after_the_first_pass_an_estimate_that_is_far_off_is_corrected_once_with_the_reason(
) -> None:
    (line,) = corrections(took_s=37.0, estimate_s=10.0)
    assert line.startswith("pass 1/3  took 74 s, 3.7 times its estimate (perhaps as 2 ranks a "
                           "core): about 3.7 min in all")
    (quick,) = corrections(took_s=1.0, estimate_s=10.0)
    assert quick == "pass 1/3  took 2 s, 0.1 times its estimate: about 6 s in all, not 60 s"
    (late,) = corrections(took_s=100.0, estimate_s=0.1)
    assert ", 1000 times its estimate" in late
    (between,) = corrections(took_s=10.0, estimate_s=10.0, between_s=10.0)
    assert "took 40 s, 2 times" in between  # new workers, clocks and the canary take time, too
    assert not corrections(took_s=12.0, estimate_s=10.0)
    assert not corrections(took_s=1.0, estimate_s=0.1)


def test_the_time_left_counts_the_start_of_each_launch_as_assumed_then_as_the_newest() -> None:
    log, now_s, case = Log(), [0.0], replace(make_case(), estimate_s=1.0)
    with Progress((case,) * 8, log, passes=2, launches=4, clock=lambda: now_s[0]) as progress:
        progress.launch_s = 3.0
        left = []
        for launch in range(4):
            now_s[0] += 7.0
            for pass_index in range(2):
                now_s[0] += 1.0
                progress.case_done(case, "ok", "", 1.0, launch=launch, pass_index=pass_index)
                left.append(progress.time_left())
    assert left == [f"about {seconds} s left" for seconds in (16, 15, 19, 18, 10, 9, 1)] + [""]
    assert "in all" not in log.getvalue()


def test_with_every_run_a_log_has_a_line_for_each() -> None:
    log, case = Log(), make_case()
    with Progress((case,) * 2, log, passes=2, every_run=True) as progress:
        for pass_index in range(2):
            progress.case_done(case, "ok", "", 0.5, pass_index=pass_index)
    assert log.getvalue().splitlines() == [
        f"[{number}/2] ok      {case.label}  pass {number}/2  took 500 ms" for number in (1, 2)]


def test_every_line_is_flushed_before_the_next_case() -> None:
    log, cases = Log(), sweep(sizes=(8,))
    with Progress(cases, log) as progress:
        for done, case in enumerate(cases, 1):
            progress.case_done(case, "ok", "", 1e-3)
            assert log.flushed.count("\n") == done


def test_long_lines_and_brackets_stay_whole() -> None:
    log, case = Log(), make_case(env=(("NCCL_ALGO", "[Ring]"),))
    with Progress((case,), log, every_run=True) as progress:
        progress.case_done(case, "skipped", "why " * 60, 0.0)
    assert "NCCL_ALGO=[Ring]" in log.getvalue()
    assert log.getvalue().count("\n") == 1


def test_time_left_scales_the_estimate_and_ignores_skips() -> None:
    cases = tuple(replace(make_case(index=index), estimate_s=1.0) for index in range(4))
    with Progress(cases, Log()) as progress:
        progress.case_done(cases[0], "skipped", "no nccl", 0.0)
        assert progress.time_left() == ""
        progress.case_done(cases[1], "ok", "", 0.9)
        assert progress.time_left() == "about 1.8 s left"
        progress.case_done(cases[2], "ok", "", 0.7)
        assert progress.time_left() == ""  # 0.8 s are not told
        progress.case_done(cases[3], "ok", "", 0.9)
        assert progress.time_left() == ""


def test_on_a_terminal_failures_stay_and_the_bar_goes() -> None:
    cases = sweep(sizes=(8,))
    with terminal() as (stream, reader):
        with Progress(cases, stream) as progress:
            progress.case_done(cases[0], "ok", "", 1e-3)
            progress.case_done(cases[1], "timeout", "rank 2: silent in RUN", 60.0)
            progress.message("new workers start")
        stream.flush()
        shown = ""
        while "new workers start" not in shown:  # a terminal gives what it has, in pieces
            shown += os.read(reader, 65536).decode(errors="replace")
    assert "1/4" in shown
    assert "2/4" in shown
    assert "timeout all_reduce mpi  took 60 s  rank 2: silent in RUN" in shown
    assert "[1/4] ok" not in shown


def test_a_long_label_does_not_push_counts_and_time_left_out_of_the_bar() -> None:
    case = replace(make_case(env=(("NAME", "long " * 40),)), estimate_s=9.0)
    with terminal() as (stream, reader), Progress((case,) * 2, stream) as progress:
        progress.name_among(())
        progress.case_done(case, "ok", "", 9.0)
        stream.flush()
        shown = os.read(reader, 65536).decode(errors="replace")
        while "left" not in shown:
            shown += os.read(reader, 65536).decode(errors="replace")
    assert "1/2" in shown
    assert "about 9 s left" in shown
