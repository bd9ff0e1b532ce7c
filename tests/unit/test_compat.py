"""Programs with nccl-tests' names: what their options mean, what they print, what they end with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from golden import RESULTS
from hpcbench.config.load import check_config
from hpcbench.errors import FileError, UsageError
from hpcbench.interop.compat import program
from hpcbench.interop.compat.__main__ import main as write_programs
from hpcbench.interop.compat.options import OPTIONS, PROGRAM_NAMES, parse, to_sweep
from hpcbench.interop.formats.export.cases import ExportedRun, exported_run
from hpcbench.interop.formats.export.nccl_tests import Launched, own_json, own_table, own_text
from hpcbench.interop.formats.reading.names import PROGRAMS
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.results_file import open_results
from unit.test_export import ALL_REDUCE, aiconfigurator, cloudai, dcgm_passes, gcm, superbench

READ_BY_OTHERS = ("time", "Rank", "device", "NVIDIA", "FAILED", "failure", "busbw", "out-of-place",
                  "Out of bounds", "Avg bus", "size")
"""Words by which programs find lines of nccl-tests."""


def swept(words: str, name: str = "all_reduce_perf", ranks: int = 2) -> Plan:
    sweep, _ = to_sweep(parse(name, words.split()), ranks, "gloo")
    return make_plan(check_config(sweep, "command line"), ranks)


def remarks(words: str, name: str = "all_reduce_perf") -> tuple[str, ...]:
    return to_sweep(parse(name, words.split()), 2)[1]


def sizes(plan: Plan) -> list[int]:
    return sorted({case.workload.choice().axes["requested_bytes"] for case in plan.cases})


# options


def test_defaults_are_those_of_nccl_tests() -> None:
    values = parse("all_reduce_perf", []).values
    assert {letter: values[letter] for letter in "tgbeifnmwNcodrzGTCaS"} == {
        "t": 1, "g": 1, "b": 2**25, "e": 2**25, "i": 2**20, "f": 1, "n": 20, "m": 1, "w": 1, "N": 1,
        "c": 1, "o": "sum", "d": "float", "r": 0, "z": 0, "G": 0, "T": 0, "C": 0, "a": 1, "S": 0}
    (case,) = swept("").cases
    assert sizes(swept("")) == [2**25]
    assert (case.mode, case.batch, case.iterations, case.warmup, case.validate) == (
        "pipelined", 20, 1, 1, True)
    assert case.workload.dtype == "fp32" and not remarks("")


def test_sizes_grow_by_factor_or_by_step() -> None:
    assert sizes(swept("-b 8 -e 64K -f 4")) == [8 * 4**k for k in range(7)]
    assert sizes(swept("-b 1M -e 3M")) == [2**20, 2**21, 3 * 2**20]
    assert sizes(swept("--minbytes 16 --maxbytes=64 -i16")) == [16, 32, 48, 64]
    assert sizes(swept("-b 0.5k -e 1G -f 1048576")) == [512, 2**29]


@pytest.mark.parametrize(("words", "mode", "batch", "samples", "warmup", "passes"), [
    ("-n 5 -w 12", "pipelined", 5, 1, 3, 1), ("-n 5 -m 4", "pipelined", 20, 1, 1, 1),
    ("-n 5 -z 1", "isolated", 1, 5, 1, 1), ("-n 5 -m 4 -z 3 -w 0", "pipelined", 4, 5, 0, 1),
    ("-n 5 -I 1", "isolated", 1, 5, 1, 1), ("-N 3", "pipelined", 20, 1, 1, 3),
    ("-N 0", "pipelined", 20, 1, 1, 1), ("-n 200000", "pipelined", 100000, 2, 1, 1)])
def test_calls_are_as_many_as_typed(
    words: str, mode: str, batch: int, samples: int, warmup: int, passes: int,
) -> None:
    plan = swept(words)
    case = plan.cases[0]
    assert (case.mode, case.batch, case.iterations, case.warmup, plan.passes) == (
        mode, batch, samples, warmup, passes)


def test_operators_types_and_roots() -> None:
    plan = swept("-o all -d all -r -1 -b 64 -e 64", "reduce_perf", 3)
    works = [case.workload for case in plan.cases]
    assert {work.op for work in works} == {"sum", "prod", "min", "max", "avg"}
    assert {work.root for work in works} == {0, 1, 2}
    assert len({work.dtype for work in works}) == 7
    (work,) = {case.workload for case in swept("-o max -d uint32 -r 1 -c 0").cases}
    assert (work.dtype, work.op, work.root) == ("int32", "max", None)
    assert not swept("-c 0").cases[0].validate
    assert swept("-T 7").cases[0].timeout_s == 7


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_every_program_measures_both_places_that_there_are(name: str) -> None:
    plan = swept("-b 64 -e 64", name)
    assert not [case.skip for case in plan.cases if case.skip]
    places = {case.workload.choice().axes["in_place"] for case in plan.cases}
    assert places == ({False, True} if PROGRAM_NAMES[name] in ("all_gather", "reduce_scatter")
                      else {PROGRAM_NAMES[name] in ("all_reduce", "broadcast", "reduce")})
    assert (Path(program.__file__).parent / f"{name}.py").is_file()
    assert {*PROGRAM_NAMES.values()} == {*PROGRAMS}


def test_what_means_something_else_is_reported_and_in_no_words_of_a_table() -> None:
    for option in OPTIONS:
        if option.form.startswith("0") and option.letter != "z":
            assert remarks(f"-{option.letter} 0") == (
                remarks("-a 0") if option.letter == "a" else ())
            assert len(remarks(f"-{option.letter} 1")) == 1, option
    every = remarks("-t 2 -g 3 -m 2 -w 3 -N 2 -p 1 -d all -o all -r -1 -z 2 -y 1 -G 2 -C 1 -a 2 "
                    "-R 2 -x 1 -D 1 -V 3 -S 1 -M 1 -u 1 -I 1 -K 1", "reduce_perf")
    assert len(every) == 20
    for line in (*every, *remarks("-d int8")):
        assert not [word for word in READ_BY_OTHERS if word in line], line
    assert not remarks("-a 3 -w 20")


@pytest.mark.parametrize("words", [
    "-q 3", "-n", "-n x", "-n 0", "-m 0", "-w -1", "-b 3x", "-b -8", "-b 64M", "-d foo",
    "-d f8e4m3", "-o mulsum", "-r -2", "-b 0 -e 8 -f 2", "-i 0 -b 1", "--iterz 3",
    "-g 0", "-z high", "8"])
def test_bad_options_are_one_line_and_255(
    words: str, capsys: pytest.CaptureFixture[str],
) -> None:
    assert program.run("all_reduce_perf", words.split(), {}) == 255
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 1 and said.err.startswith("all_reduce_perf: ")


def test_help_is_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run("gather_perf", ["-n", "x", "--help"], {}) == 0
    said = capsys.readouterr()
    assert not [one for one in OPTIONS if f"-{one.letter}, --{one.name} " not in said.out]
    assert program.run("gather_perf", ["-h"], {"PMI_SIZE": "2", "PMI_RANK": "1"}) == 0
    assert not capsys.readouterr().out


def test_a_limit_that_is_no_number_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run("all_reduce_perf", [], {"NCCL_TESTS_MIN_BW": "fast"}) == 255
    assert len(capsys.readouterr().err.splitlines()) == 1


# text


@pytest.fixture
def measured() -> Iterator[ExportedRun]:
    with open_results(RESULTS["collective"]) as file:
        run = exported_run(file, [ALL_REDUCE])
        yield replace(run, cases=tuple(
            case for case in run.cases if case.item.case.workload.dtype == "fp32"
            and case.item.case.mode == "isolated")[:3])


def launched(words: str = "", least: float | None = None) -> Launched:
    options = parse("all_reduce_perf", words.split())
    return Launched(("all_reduce_perf", *words.split()), program.typed(options),
                    to_sweep(options, 2)[1], least)


def test_the_heading_has_what_was_typed_and_remarks(measured: ExportedRun) -> None:
    words = "-b 8 -e 1M -f 2 -n 7 -m 3 -w 2 -S 1"
    table = own_table(measured, launched(words))
    text = own_text(measured, table)
    assert ("# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 2 "
            "iters: 7 agg iters: 3 validation: 1 graph: 0 unalign: 0\n") in text
    assert text.count("# hpcbench: -") == 3
    assert dcgm_passes(text) and len(cloudai(text)) == len(measured.cases)
    assert gcm(text) == pytest.approx(table.mean_busbw, rel=1e-5)
    assert aiconfigurator(text) > 0 and superbench(text)
    document = json.loads(own_json(measured, table))
    assert document["args"] == ["all_reduce_perf", *words.split()]
    assert document["config"]["aggregated_iterations"] == 3


@pytest.mark.parametrize(("least", "passes", "code"), [(1e-9, True, 0), (1000.0, False, 7)])
def test_the_limit_judges_the_average(
    measured: ExportedRun, least: float, passes: bool, code: int,
) -> None:
    table = own_table(measured, launched(least=least))
    text = own_text(measured, table)
    assert dcgm_passes(text) is passes
    verdict = {True: "OK", False: "FAILED"}[passes]
    assert [line for line in text.splitlines()
            if line.startswith("# Avg bus bandwidth") and line.endswith(f" {verdict}")]
    assert json.loads(own_json(measured, table))["average_bus_bandwidth"]["okay"] == (
        str(passes).lower())
    assert program.exit_code(table) == code


def test_nccl_tests_compares_with_nine_tenths(measured: ExportedRun) -> None:
    mean = own_table(measured, launched()).mean_busbw
    assert program.exit_code(own_table(measured, launched(least=mean / 0.91))) == 0
    assert program.exit_code(own_table(measured, launched(least=mean / 0.89))) == 7


@pytest.mark.parametrize(("status", "code"), [
    ("wrong", 7), ("failed", 1), ("not_run", 1), ("timeout", 4)])
def test_a_case_that_went_bad_is_never_success(
    measured: ExportedRun, status: str, code: int,
) -> None:
    first, *rest = measured.cases
    bad = replace(first, item=replace(first.item, status=status), metrics=())
    run = replace(measured, cases=(bad, *rest))
    table = own_table(run, launched())
    text = own_text(run, table)
    assert not dcgm_passes(text) and f"# Test failure: {status}: {bad.name}" in text
    assert program.exit_code(table) == code


def test_what_was_skipped_is_shown_with_its_reason(measured: ExportedRun) -> None:
    def skipped(case: Any) -> Any:
        return replace(case, metrics=(), item=replace(
            case.item, status="skipped", reason="nccl needs a GPU", statistics=None))

    first, *rest = measured.cases
    run = replace(measured, cases=(skipped(first), *rest))
    table = own_table(run, launched())
    assert "1 case: nccl needs a GPU" in own_text(run, table)
    assert program.exit_code(table) == 0
    run = replace(measured, cases=tuple(map(skipped, measured.cases)))
    table = own_table(run, launched())
    text = own_text(run, table)
    assert program.exit_code(table) == 5 and not dcgm_passes(text)
    with pytest.raises(ValueError, match="failed"):
        cloudai(text)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert program.free(file) == file
    file.touch()
    (tmp_path / "out.json.0").touch()
    assert program.free(file) == tmp_path / "out.json.1"


# programs in a folder


def test_programs_are_written_where_others_expect_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "a b" / "bin"
    assert write_programs([str(folder)]) == write_programs([str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder)] * 2
    assert {path.name for path in folder.iterdir()} == {*PROGRAM_NAMES}
    done = subprocess.run([folder / "sendrecv_perf", "-n", "a b"], capture_output=True, text=True,
                          timeout=60, env={"PATH": os.defpath}, cwd="/", check=False)
    assert (done.returncode, done.stderr) == (255, "sendrecv_perf: -n a b: no whole number\n")


def test_no_program_of_others_is_written_over(tmp_path: Path) -> None:
    other = Path(shutil.copy("/bin/true", tmp_path / "scatter_perf"))
    before = other.read_bytes()
    with pytest.raises(FileError, match="is there already, and not ours"):
        write_programs([str(tmp_path)])
    assert other.read_bytes() == before
    for words in ([], ["a", "b"], ["--bin"]):
        with pytest.raises(UsageError):
            write_programs(words)


def test_what_other_processes_used_of_the_cores_is_a_comment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = parse("all_reduce_perf", ["-b", "8"])
    program._Job(options, ("all_reduce_perf",), None, None)._printed(RESULTS["collective"], ())
    (told,) = [line for line in capsys.readouterr().out.splitlines()
               if line.startswith("# hpcbench: other")]
    assert told.startswith("# hpcbench: other processes used 29 % to 49 %")
