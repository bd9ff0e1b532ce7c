"""Exports of real results, read as the programs read them that they are for.

The readers below are written from the rules of those programs, apart from the code that exports.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bad_input_process import hpcbench
from golden import EXPECTED, RESULTS, ROOT
from hpcbench import __version__
from hpcbench.answers.verdict import RED, verdict_of
from hpcbench.errors import FileError, HpcbenchError, UsageError
from hpcbench.interop.formats.export.cases import (
    Exported,
    ExportedRun,
    ExportRequest,
    exported_run,
    plain_number,
)
from hpcbench.interop.formats.export.nccl_tests import as_json, as_text
from hpcbench.interop.formats.export.prometheus import as_prometheus, size_range
from hpcbench.interop.formats.export.tables import OF_RUN, as_otava
from hpcbench.interop.formats.export.timeline import as_perfetto
from hpcbench.interop.formats.export.write import FORMATS, export_files
from hpcbench.interop.formats.imported import import_files
from hpcbench.interop.formats.imported_rows import UserFacts
from hpcbench.interop.formats.lint import Linting
from hpcbench.operations.arrival import ArrivalPattern
from hpcbench.reduce.results import PRINTED_MEDIAN_FOLD, Finding
from hpcbench.reduce.results_file import open_results
from hpcbench.reduce.stack import counts
from hpcbench.trace.clock import ClockModel

ALL_REDUCE = "all_reduce gloo cpu fp32 sum * n=2"
PROGRAMS = {"all_reduce_perf": "all_reduce", "all_gather_perf": "all_gather",
            "reduce_scatter_perf": "reduce_scatter", "alltoall_perf": "all_to_all",
            "broadcast_perf": "broadcast", "reduce_perf": "reduce", "gather_perf": "gather",
            "scatter_perf": "scatter", "sendrecv_perf": "send_recv"}
TYPES = {"float": "fp32", "double": "fp64", "bfloat16": "bf16", "int32": "int32"}


def export(
    name: str, to: str, *only: str, metrics: Sequence[str] = (), samples: int = 20,
) -> tuple[str, list[str]]:
    """Return the text, and the lines for standard error."""
    exported, lines = export_files(
        [RESULTS[name]], to, ExportRequest(tuple(metrics), samples), only)
    return exported.content.decode(), list(lines)


def summary(name: str) -> list[dict[str, Any]]:
    """Return the cases as summary.json has had them since before there were exports."""
    text = (EXPECTED / name / "summary.json").read_text(encoding="utf-8")
    return list(json.loads(text)["cases"])


def ok_cases(name: str) -> list[dict[str, Any]]:
    return [case for case in summary(name) if case["status"] == "ok"]


@pytest.fixture
def opened() -> Iterator[ExportedRun]:
    with open_results(RESULTS["collective"]) as file:
        yield exported_run(file, [ALL_REDUCE])


# readers of nccl-tests' text


def cloudai(text: str) -> list[list[str]]:
    """Return the rows; raise for a test that CloudAI takes for failed."""
    if "Test NCCL failure" in text or "Test failure" in text:
        raise ValueError("the test failed")
    if not all(f"# {footer}" in text for footer in ("Out of bounds values", "Avg bus bandwidth")):
        raise ValueError("a footer is missing")
    lines = [line.strip() for line in text.splitlines()]
    return [line.split() for line in lines if re.match(r"\d", line) and len(line.split()) == 13]


def cloudai_devices(text: str) -> list[str]:
    found = [line for line in text.splitlines()
             if all(word in line for word in ("Rank", "device", "NVIDIA"))]
    return [re.search(r"on\s+(\S+)\s+device\s+\d+", line)[1] for line in found]  # type: ignore[index]


def dcgm_passes(text: str) -> bool:
    footers = [line for line in text.splitlines()
               if "Out of bounds values" in line or "Avg bus bandwidth" in line]
    return len(footers) == 2 and not any("FAILED" in line for line in footers)


def gcm(text: str) -> float:
    line = next(line for line in text.splitlines() if "Avg bus bandwidth" in line)
    return float(re.search(r"[\d.]+", line)[0])  # type: ignore[index]


def superbench(text: str) -> dict[str, float]:
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if "out-of-place" in line)
    end = next(at for at, line in enumerate(lines) if "Out of bounds values" in line)
    names = lines[begin + 1].split()
    assert {"size", "time", "algbw", "busbw"} <= set(names)
    from_right = len(names) - names.index("time")
    found = {}
    for line in lines[begin + 3:end]:
        fields = line.split()
        found[f"{fields[0]}_time"] = float(fields[-from_right])
        found[f"{fields[0]}_busbw"] = float(fields[-from_right + 2])
    return found


def ramble(text: str) -> list[tuple[str, ...]]:
    number = r"[0-9]+\.?[0-9]+"
    parts = ["[0-9]+", "[0-9]+", *[r"\S+"] * 3, *([number] * 3 + [r"\S+"]) * 2]
    row = re.compile("".join(rf"\s+({part})" for part in parts))
    return [found.groups() for found in map(row.match, text.splitlines()) if found]


def aiconfigurator(text: str) -> float:
    lines = text.splitlines()
    at = next(at for at, line in enumerate(lines) if "time" in line)
    return float(lines[at + 2].split()[5])


def test_rows_have_thirteen_fields_and_the_printed_decimals_of_every_case() -> None:
    text, _ = export("collective", "nccl-tests")
    rows = []
    for table in re.split(r"# Collective test starting: ", text)[1:]:
        program = table.split()[0]
        rows += [(PROGRAMS[program], *row) for row in cloudai(table)]
    measured = [case for case in ok_cases("collective")
                if case["collective"] in PROGRAMS.values() and case["world_size"] == 2]
    assert len(rows) == len(ramble(text)) == len(measured) > 30
    for case in measured:
        time_us = case["median_s"] * 1e6
        fitting = [row for row in rows if row[:5] == (
            case["collective"], str(case["size_bytes"]), str(case["count"]), row[3],
            case["op"] or "none") and TYPES[row[3]] == case["dtype"]
            and int(row[5]) == (-1 if case["root"] is None else case["root"])
            and abs(float(row[6]) - time_us) <= 0.0501]
        assert fitting, case["label"]
        for first in (6, 10):
            assert float(fitting[0][first + 1]) == pytest.approx(
                case["algbw_gb_per_s"], abs=0.00501)
            assert float(fitting[0][first + 2]) == pytest.approx(
                case["busbw_gb_per_s"], abs=0.00501)
            assert fitting[0][first + 3] == str(case["n_wrong"])


def test_one_table_is_read_by_every_consumer() -> None:
    text, lines = export("collective", "nccl-tests", "all_to_all")
    cases = [case for case in ok_cases("collective") if case["collective"] == "all_to_all"]
    assert [row[0] for row in cloudai(text)] == ["64", "16384"]
    assert dcgm_passes(text)
    mean = sum(case["busbw_gb_per_s"] for case in cases) / len(cases)
    assert gcm(text) == pytest.approx(mean, rel=1e-5)
    assert float(re.search(r"\s*Avg bus bandwidth\s+:\s+([0-9]+\.?[0-9]+)", text)[1]  # type: ignore[index]
                 ) == pytest.approx(mean, rel=1e-5)
    found = superbench(text)
    for case in cases:
        assert found[f"{case['size_bytes']}_time"] == pytest.approx(
            case["median_s"] * 1e6, abs=0.00501)
    assert aiconfigurator(text) == pytest.approx(cases[0]["median_s"] * 1e6, abs=0.00501)
    assert not cloudai_devices(text), "a CPU is no NVIDIA device"
    assert sum("one place only" in line for line in lines) == 1


def test_wrong_and_failed_cases_can_appear_right_to_no_reader_of_a_table() -> None:
    text, lines = export("mixed", "nccl-tests")
    tables = [f"# {table}" for table in re.split(r"# nccl-tests version", text)[1:]]
    assert len(tables) == 2
    for table, wrong in zip(tables, (0, 1), strict=True):
        assert not dcgm_passes(table)
        assert f"# Out of bounds values : {wrong} FAILED" in table
        assert len(ramble(table)) == 1
        with pytest.raises(ValueError, match="failed"):
            cloudai(table)
    counted = [line for line in lines if line.startswith("left out: ")]
    assert sum(int(line.split()[2]) for line in counted) == 7, "a wrong case with a row is there"
    assert any("faults were injected" in line for line in lines)


def test_large_numbers_have_no_exponent(opened: ExportedRun) -> None:
    values = {"time": 123456789.75, "algbw": 123456.7, "busbw": 1e-9}
    cases = tuple(replace(case, metrics=tuple(
        replace(one, value=values[one.name]) for one in case.metrics)) for case in opened.cases)
    text = as_text([replace(opened, cases=cases)], ExportRequest()).content.decode()
    rows = ramble(text)
    assert len(rows) == len(opened.measured)
    assert {row[5:8] for row in rows} == {("123456790", "123457", "0.00")}
    assert re.search(r"Avg bus bandwidth    : 0\.000000001 ", text)


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0.0"), (1e-7, "0.0000001"), (0.0000150271, "0.0000150271"), (24801.864, "24801.9"),
    (123456789.0, "123456789.0"), (3.0, "3.0"), (2.5e12, "2500000000000.0")])
def test_plain_numbers(value: float, text: str) -> None:
    assert plain_number(value) == text
    assert re.fullmatch(r"[0-9]+\.[0-9]+", text)


def test_splits_groups_and_other_kinds_are_left_out_and_counted(opened: ExportedRun) -> None:
    first, *rest = opened.measured
    split = replace(first, columns={**first.columns, "split": "linear"})
    own = replace(first, columns={**first.columns, "collective": "of_a_plugin"})
    exported = as_text([replace(opened, cases=(split, own, *rest))], ExportRequest())
    reasons = {one.reason for one in exported.left_out}
    assert reasons == {"parts of different sizes (split)", "of_a_plugin is no program of "
                       "nccl-tests"}
    assert len(cloudai(exported.content.decode())) == len(rest)
    with pytest.raises(UsageError, match="no collective"):
        export("training", "nccl-tests")


def test_both_places_of_a_size_share_a_row(opened: ExportedRun) -> None:
    case = opened.measured[0]
    other = replace(case, columns={**case.columns, "in_place": 0}, metrics=tuple(
        replace(one, value=one.value * 2) for one in case.metrics))
    exported = as_text([replace(opened, cases=(case, other))], ExportRequest())
    (row,) = cloudai(exported.content.decode())
    assert float(row[5]) == pytest.approx(2 * float(row[9]), abs=0.02)
    assert not any("one place" in note for note in exported.notes)
    document = json.loads(as_json([replace(opened, cases=(case, other))], ExportRequest()).content)
    (result,) = document["results"]
    assert result["out_of_place"]["time"] == pytest.approx(2 * result["in_place"]["time"])


def test_unchecked_results_are_not_shown_as_right(opened: ExportedRun) -> None:
    cases = tuple(replace(case, item=replace(case.item, n_wrong=None)) for case in opened.measured)
    text = as_text([replace(opened, cases=cases)], ExportRequest()).content.decode()
    assert {row[8] for row in cloudai(text)} == {"N/A"} and len(ramble(text)) == len(cases)


def on_gpus(run: ExportedRun) -> ExportedRun:
    environment = {"gpu": {"name": "NVIDIA H100 80GB HBM3"},
                   "gpu_topology": {"pci": ["0000:1b:00.0", "0000:43:00.0"]},
                   "scheduler": {"SLURM_JOB_ID": "17"}}
    places = tuple(replace(place, gpu=place.rank, matrix=0)
                   for place in run.results.topology.ranks)
    results = replace(
        run.results, topology=replace(run.results.topology, ranks=places), run=replace(
            run.results.run, environment=environment, versions={"nccl": "2.27.5"}))
    cases = tuple(replace(case, item=replace(case.item, device="cuda:0")) for case in run.cases)
    return replace(run, results=results, cases=cases)


def test_devices_are_counted_on_gpus(opened: ExportedRun) -> None:
    text = as_text([on_gpus(opened)], ExportRequest()).content.decode()
    tables = text.count("# Using devices")
    assert cloudai_devices(text) == ["node0"] * 2 * tables
    assert text.count("device  1 [0000:43:00] NVIDIA H100") == tables
    assert "nccl-library=22705" in text


@pytest.mark.parametrize("to", ["nccl-tests", "nccl-tests-json"])
def test_what_was_exported_can_be_imported_and_exported_again(to: str, tmp_path: Path) -> None:
    text, _ = export("collective", to, "all_gather gloo cpu fp32 *")
    file, results = tmp_path / "table", tmp_path / "imported.h5"
    file.write_text(text, encoding="utf-8")
    linting = Linting("", None, as_json=True)
    linting.read(file)
    assert linting.count == 0
    import_files([file], results, UserFacts())
    again, lines = export_files([results], "nccl-tests", ExportRequest())
    direct, _ = export("collective", "nccl-tests", "all_gather gloo cpu fp32 *")
    halves = {(row[0], row[5]) for row in cloudai(direct)}
    assert {(row[0], row[5]) for row in cloudai(again.content.decode())} == halves
    assert len(halves) == 2
    assert any("imported: times that hpcbench" in line for line in lines)
    assert "; medians;" not in again.content.decode()
    table, _ = export_files([results], "csv", ExportRequest())
    rows = list(csv.DictReader(io.StringIO(table.content.decode())))
    assert rows and {(row["imported"], row["backend"], row["device"], row["mode"], row["fold"])
                     for row in rows} == {
        (f"hpcbench {__version__}", "gloo", "cpu", "isolated", PRINTED_MEDIAN_FOLD)}


@pytest.mark.parametrize("to", ["nccl-tests", "nccl-tests-json"])
def test_an_own_table_is_read_as_the_cases_that_it_was_made_of(
    to: str, opened: ExportedRun, tmp_path: Path,
) -> None:
    (of,) = opened.measured[:1]
    work = replace(of.item.case.workload, asynchronous=True, buffers="cold")
    case = replace(of.item.case, workload=work, mode="barrier_start",
                   arrival=ArrivalPattern("last", 250_000), warmup=7,
                   env=(("UCX_TLS", "tcp,\n time Avg bus bandwidth"),))
    exported = replace(of, item=replace(of.item, case=case),
                       columns={**of.columns, "asynchronous": 1, "buffers": "cold"})
    run = replace(opened, cases=(exported,))
    text = (as_text if to == "nccl-tests" else as_json)([run], ExportRequest()).content.decode()
    assert text.count("time Avg") == (to != "nccl-tests") and text.count("Avg bus bandwidth") < 3
    (tmp_path / "table").write_text(text, encoding="utf-8")
    import_files([tmp_path / "table"], tmp_path / "a.h5", UserFacts())
    with open_results(tmp_path / "a.h5") as file:
        (item,) = file.results.cases
    assert item.case.label == case.label and item.case.warmup == 7
    assert (item.case.workload, item.case.arrival) == (work, ArrivalPattern("last", 250_000))


@pytest.mark.parametrize("form", [as_text, as_json])
def test_what_must_not_be_quoted_is_not_to_be_quoted_as_a_table(
    form: Callable[..., Exported], opened: ExportedRun, tmp_path: Path,
) -> None:
    """Injected faults, and cores that other processes used, as often as it is exported."""
    noise = Finding("HB144", "note", "other processes used 82 % to 86 % of each core: tails", 0.86)
    run = replace(opened, cases=opened.measured[:1], results=replace(
        opened.results, run=replace(opened.results.run, faults=("slow",)), findings=(
            noise, Finding("HB143", "note", "rank 1: less", 0.2), Finding("HB130", "note", "x"))))
    for name in ("first", "second"):
        content = form([run], ExportRequest()).content
        told = re.findall("# hpcbench: other processes used 82 % to 86 % of each core\n",
                          content.decode())
        assert len(told) == (form is as_text)
        (tmp_path / name).write_bytes(content)
        import_files([tmp_path / name], tmp_path / f"{name}.h5", UserFacts())
        with open_results(tmp_path / f"{name}.h5") as file:
            run, own = exported_run(file), file.results
            assert (own.run.faults, own.findings[0]) == (("slow",), noise)
            assert [one.code for one in own.findings] == ["HB144", "HB143"]
            assert verdict_of(own).state == RED == verdict_of(replace(
                own, run=replace(own.run, faults=()))).state


def test_what_was_measured_in_one_place_only_is_one_case_again(tmp_path: Path) -> None:
    text, _ = export("collective", "nccl-tests", ALL_REDUCE)
    cases = [case for case in ok_cases("collective") if case["label"].startswith("all_reduce gloo")]
    lines = text.splitlines()
    torn = next(at for at, line in enumerate(lines) if re.match(r" +\d", line))
    for name, kept in (("whole", lines), ("torn", lines[:torn] + lines[torn + 1:])):
        (tmp_path / name).write_text("\n".join(kept), encoding="utf-8")
        import_files([tmp_path / name], tmp_path / f"{name}.h5", UserFacts())
        with open_results(tmp_path / f"{name}.h5") as file:
            labels = [item.case.label for item in file.results.cases]
        assert {*labels} <= {case["label"] for case in cases}
        assert len(labels) == len({*labels}) > 1


@pytest.mark.parametrize("changed", ["", "{}", '{"backend": "gloo"}', '{"backend": "glo", '
                                     '"device": "cpu"}', '{"backend": "gloo", "device": "cpu", '
                                     '"later": 1}'])
def test_a_table_of_another_version_is_refused_or_its_backend_asked_for(
    changed: str, tmp_path: Path,
) -> None:
    text, _ = export("collective", "nccl-tests", ALL_REDUCE)
    (tmp_path / "table").write_text(re.sub(
        r"(layout of nccl-tests); \{.*\}", f"\\1; {changed}" if changed else r"\1", text))
    with pytest.raises(HpcbenchError) as raised:
        import_files([tmp_path / "table"], tmp_path / "a.h5", UserFacts())
    assert (type(raised.value) is UsageError) == (not changed)
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_torn_line_about_a_table_makes_it_no_table_of_nccl(share: float, tmp_path: Path) -> None:
    text, _ = export("collective", "nccl-tests", ALL_REDUCE)
    (line,) = re.findall(r"# hpcbench .*, run .*", text)
    (tmp_path / "table").write_text(text.replace(line, line[:round(share * len(line))]))
    with pytest.raises(FileError, match="left out"):
        import_files([tmp_path / "table"], tmp_path / "a.h5", UserFacts())


def test_a_row_that_was_measured_twice_begins_another_table(opened: ExportedRun) -> None:
    case = opened.measured[0]
    exported = as_text([replace(opened, cases=(case, case))], ExportRequest())
    assert exported.content.decode().count("# Collective test starting") == 2
    assert len(cloudai(exported.content.decode())) == 2


# nccl-tests' JSON


def test_json_is_what_the_analyser_reads() -> None:
    text, _ = export("collective", "nccl-tests-json", "all_to_all")
    data = json.loads(text)
    assert (data["version"], data["env"]) == (3, [])
    assert datetime.strptime(data["start_time"], "%Y-%m-%d %H:%M:%S").year == 2026
    cases = [case for case in ok_cases("collective") if case["collective"] == "all_to_all"]
    for row, case in zip(data["results"], cases, strict=True):
        assert (row["size"], row["count"]) == (case["size_bytes"], case["count"])
        assert row["root"] == "    -1" and row["redop"] == "none"
        assert row["in_place"] is None and "in_place_per_iter" not in row
        assert row["out_of_place"]["time"] == pytest.approx(case["median_s"] * 1e6)
        assert row["out_of_place"]["bus_bw"] == pytest.approx(case["busbw_gb_per_s"])
        samples = row["out_of_place_per_iter"]
        of_ranks = samples["per_process_max_times_us"]
        assert len(of_ranks) == len(data["config"]["devices"]) == 2
        assert samples["times_us"] == [max(both) for both in zip(*of_ranks, strict=True)]
        assert len(samples["times_us"]) == row["actual_iterations"] == case["n"]
        assert [samples[f"{name}_us"] for name in ("min", "max", "avg", "stdev", "p95", "p99")] == [
            pytest.approx(function(samples["times_us"])) for function in (min, max, np.mean, np.std,
            *(partial(np.percentile, q=share, method="inverted_cdf") for share in (95, 99)))]
        assert samples["p50_us"] == sorted(samples["times_us"])[case["n"] // 2]
    assert data["config"]["iterations"] == cases[0]["n"]
    assert data["average_bus_bandwidth"]["okay"] == "unchecked"
    assert data["out_of_bounds"] == {"count": 0, "okay": "true"}


def test_iterations_of_a_batch_are_its_calls(opened: ExportedRun) -> None:
    case = opened.measured[0]
    run = replace(opened, cases=(replace(case, item=replace(case.item, case=replace(
        case.item.case, mode="pipelined", batch=5))),))
    assert json.loads(as_json([run], ExportRequest()).content)["config"]["iterations"] == 5
    assert re.search(r"(?<!p )(?<!g )iters: 5 ", as_text([run], ExportRequest()).content.decode())


def test_each_iteration_of_a_batch_is_a_call(opened: ExportedRun) -> None:
    case = opened.measured[0]
    timing = case.item.timing
    assert timing is not None
    item = replace(case.item, timing=replace(timing, calls=4))
    one, four = (json.loads(as_json([replace(opened, cases=(some,))], ExportRequest()).content)
                 ["results"][0] for some in (case, replace(case, item=item)))
    (name,) = (key for key in one if key.endswith("_per_iter"))
    assert np.multiply(four[name]["times_us"], 4) == pytest.approx(one[name]["times_us"])


def test_json_holds_one_table_and_reports_wrong_results() -> None:
    with pytest.raises(UsageError, match="holds one table, and there are 2"):
        export("mixed", "nccl-tests-json")
    data = json.loads(export("mixed", "nccl-tests-json", "broadcast")[0])
    assert data["out_of_bounds"] == {"count": 1, "okay": "false"}
    assert [(row["size"], row["out_of_place"], (row["in_place"] or {}).get("nwrong"))
            for row in data["results"]] == [(64, None, 2), (4096, None, 0)]
    assert data["results"][0]["in_place"]["time"] == "nan"
    right = data["results"][1]["in_place"]["bus_bw"]
    assert data["average_bus_bandwidth"]["bandwidth"] == right > 0
    assert len(data["errors"]) == 1


@pytest.mark.parametrize("name", ["collective", "mixed"])
def test_a_table_is_chosen_by_the_flags_that_a_message_names(name: str) -> None:
    """They were of another number of ranks, and the end of no label of an imported row."""
    with pytest.raises(UsageError) as refused:
        export(name, "nccl-tests-json")
    told = str(refused.value).partition(": ")[2].split("; ")
    rows = [{row[0] for row in ramble(table)} for table in re.split(
        "# nccl-tests version", export(name, "nccl-tests")[0])[1:]]
    for flags, sizes in zip((one for one in told if one != "..."), rows, strict=False):
        words = shlex.split(flags)
        assert {*words[::2]} == {"--only"}
        table = json.loads(export(name, "nccl-tests-json", *words[1::2])[0])
        assert {str(row["size"]) for row in table["results"]} >= sizes


# Prometheus


def prometheus(text: str) -> dict[tuple[str, str], float]:
    """Return values by name and labels, read as strictly as the textfile collector does."""
    found: dict[tuple[str, str], float] = {}
    order: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert kind == "gauge" and name not in order
            order.append(name)
        elif not line.startswith("# HELP"):
            sample = re.fullmatch(
                r'([a-zA-Z_]\w*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)', line)
            assert sample, line
            assert sample[1] == order[-1], "samples of a name stand together"
            assert (sample[1], sample[2]) not in found, "a series stands twice"
            found[sample[1], sample[2]] = float(sample[3])
    assert text.endswith("\n")
    return found


@pytest.mark.parametrize("name", RESULTS)
def test_prometheus_takes_every_series(name: str) -> None:
    text, _ = export(name, "prometheus")
    found = prometheus(text)
    assert all('comm_name="hpcbench"' in labels for _, labels in found)
    for case in summary(name):
        of_case = {gauge: value for (gauge, labels), value in found.items()
                   if f'case_id="{case["case_id"]}"' in labels}
        if case["status"] != "ok":
            assert not of_case
            continue
        assert of_case["hpcbench_time_seconds"] == pytest.approx(case["median_s"])
        if case["collective"] in INSPECTED and case["world_size"] > 1:
            assert of_case["nccl_bus_bandwidth_gbs"] == pytest.approx(case["busbw_gb_per_s"])
        else:
            assert not any(gauge.startswith("nccl_") for gauge in of_case)
    bad = sum(value for (gauge, labels), value in found.items() if gauge == "hpcbench_cases"
              and re.search('status="(wrong|failed|timeout)"', labels))
    assert bad == (3 if name == "mixed" else 0)


INSPECTED = {"all_reduce": "AllReduce", "all_gather": "AllGather", "broadcast": "Broadcast",
             "reduce_scatter": "ReduceScatter", "reduce": "Reduce", "all_to_all": "All2All"}
ABBREVIATED = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
"""Parts of names that ``promtool check metrics`` objects to."""


@pytest.mark.parametrize("name", RESULTS)
def test_names_of_ours_are_as_promtool_wants_them(name: str) -> None:
    text, _ = export(name, "prometheus")
    names = {gauge for gauge, _ in prometheus(text) if gauge.startswith("hpcbench_")}
    assert names and not any(ABBREVIATED.intersection(gauge.split("_")) for gauge in names)
    assert not any(re.search("(milli|micro|nano)second|_(count|total|sum|bucket)$", gauge)
                   for gauge in names)
    found = {*re.findall(r'collective="(\w+)"', text)}
    assert found <= {*INSPECTED.values()} and ("All2All" in found or name != "collective")


def test_labels_are_those_of_the_inspector(opened: ExportedRun) -> None:
    text = as_prometheus([on_gpus(opened)], ExportRequest()).content.decode()
    line = next(line for line in text.splitlines() if line.startswith("nccl_bus_bandwidth_gbs{"))
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    wanted = {"version": "v5.1", "slurm_job_id": "17", "node": "node0", "gpu": "GPU0",
              "comm_name": "hpcbench", "n_nodes": "1", "nranks": "2", "collective": "AllReduce",
              "message_size": "64-65B", "algo_proto": "unknown"}
    assert [*labels][:len(wanted)] == [*wanted] and wanted.items() <= labels.items()


@pytest.mark.parametrize("setting", [
    {"arrival": ArrivalPattern("last", 2_000_000)}, {"mode": "synced"}, {"cuda_graph": True},
    {"env": (("NCCL_ALGO", "Ring"),)}])
def test_series_of_other_settings_differ_in_more_than_their_id(
    opened: ExportedRun, setting: dict[str, Any],
) -> None:
    item = opened.measured[0].item
    changed = replace(item, case=replace(item.case, **setting))
    cases = tuple(replace(opened.measured[0], item=one, name=one.case.label)
                  for one in (item, changed))
    text = as_prometheus([replace(opened, cases=cases)], ExportRequest()).content.decode()
    series = [re.sub('case_id="[^"]*"', "", line.rpartition(" ")[0])
              for line in text.splitlines() if 'case_id="' in line]
    assert len(series) == len({*series}) > 4
    assert any(line.startswith("nccl_") for line in series)


@pytest.mark.parametrize(("size", "text"), [
    (0, "0B"), (64, "64-65B"), (1024, "1-2KB"), (4 * 2**30 + 5, "4-5GB"), (2**50, "1024-1025TB")])
def test_sizes_are_shown_as_ranges(size: int, text: str) -> None:
    assert size_range(size) == text


# histories


def test_bencher_has_time_and_rates_with_their_intervals() -> None:
    document = json.loads(export("collective", "bencher")[0])
    by_name = {case["label"]: case for case in ok_cases("collective")}
    assert document.keys() == by_name.keys()
    n_intervals = 0
    for name, measures in document.items():
        case = by_name[name]
        assert len(name) <= 1024
        assert measures["latency"]["value"] == pytest.approx(case["median_s"] * 1e9)
        if case["busbw_gb_per_s"]:
            assert measures["busbw"]["value"] == pytest.approx(case["busbw_gb_per_s"])
        for one in measures.values():
            if "lower_value" in one:
                n_intervals += 1
                assert one["lower_value"] <= one["value"] <= one["upper_value"]
                assert case["ci_reliable"]
    assert n_intervals or not any(case["ci_reliable"] for case in by_name.values())


def test_github_benchmark_is_of_one_direction() -> None:
    text, lines = export("mixed", "github-benchmark")
    entries = json.loads(text)
    assert "for tool: customSmallerIsBetter" in lines
    assert len(entries) == len({entry["name"] for entry in entries}) == len(ok_cases("mixed"))
    assert all(entry["name"].count("/") == 1 and entry["unit"] == "us" and entry["value"] > 0
               for entry in entries)
    _, lines = export("mixed", "github-benchmark", metrics=["busbw"])
    assert "for tool: customBiggerIsBetter" in lines
    with pytest.raises(UsageError, match="one direction"):
        export("mixed", "github-benchmark", metrics=["busbw", "time"])


def test_otava_has_a_row_for_each_run_in_order_of_time() -> None:
    with open_results(RESULTS["training"]) as early, open_results(RESULTS["mixed"]) as late:
        first, faulty = exported_run(early), exported_run(late)
        second = replace(faulty, results=replace(faulty.results, run=replace(
            faulty.results.run, faults=())))
        runs = [second, replace(first, cases=second.cases)]
        exported = as_otava(runs, ExportRequest())
        left_out = as_otava([faulty], ExportRequest())
    assert not left_out.content and faulty.results.run.injected in left_out.notes[0]
    rows = [*csv.DictReader(io.StringIO(exported.content.decode()))]
    moments = [datetime.strptime(row["time"], "%Y.%m.%d %H:%M:%S %z") for row in rows]
    assert moments[0] < moments[1] and len(moments) == 2
    assert moments == [datetime.fromisoformat(
        run.results.run.started_at.replace("Z", "+00:00")) for run in (first, second)]
    assert [*rows[0]][:2] == ["time", "commit"] and rows[0]["commit"] != rows[1]["commit"]
    times = [float(value) for name, value in rows[0].items() if name.endswith(".time")]
    assert sorted(times) == pytest.approx(
        sorted(case["median_s"] * 1e6 for case in ok_cases("mixed")))


def test_otava_gets_no_column_with_a_gap() -> None:
    """One empty cell ends its analysis of all, and a NaN hides a change."""
    with open_results(RESULTS["collective"]) as file:
        opened = exported_run(file)
    lost, not_finite, *others = opened.measured
    metrics = tuple(replace(one, value=math.nan) for one in not_finite.metrics)
    cases = (replace(not_finite, metrics=metrics), *others)
    empty = replace(opened, cases=())
    exported = as_otava([opened, replace(opened, cases=cases), empty], ExportRequest())
    rows = [*csv.DictReader(io.StringIO(exported.content.decode()))]
    expected = [f"{case.slug}.{one.name}" for case in others for one in case.metrics]
    assert others and [*rows[0]] == ["time", "commit", *expected] and len(rows) == 2
    assert all(math.isfinite(float(row[name])) for row in rows for name in expected)
    of_run, note = exported.notes
    assert opened.results.run.run_id in of_run
    assert all(f"{case.slug}.{one.name}" in note for case in (lost, not_finite)
               for one in case.metrics)
    with pytest.raises(UsageError, match="without a value in every run: .*time"):
        export_files([RESULTS["training"], RESULTS["collective"]], "otava", ExportRequest())


# lines


def test_figures_of_merit_are_read_by_one_expression() -> None:
    text, _ = export("mixed", "fom")
    line = re.compile(r"(\S+): ([0-9]+(?:\.[0-9]+)?) (\S+)")
    found = {match[1]: (float(match[2]), match[3]) for match in map(line.fullmatch,
             text.splitlines()) if match}
    assert len(found) == len(text.splitlines())
    assert (found["hpcbench.wrong"], found["hpcbench.failed"]) == ((1, "cases"), (1, "cases"))
    (case,) = [case for case in ok_cases("mixed") if case["collective"] == "broadcast"]
    name = "broadcast_gloo_cpu_fp32_4096B_n=2"
    assert found[f"{name}.time"] == (pytest.approx(case["median_s"] * 1e6, rel=1e-5), "us")
    assert found[f"{name}.busbw"] == (pytest.approx(case["busbw_gb_per_s"], rel=1e-5), "GB/s")
    assert not any("64B" in name and "broadcast" in name for name in found)


def test_superbench_has_an_object_for_each_node() -> None:
    (line,) = export("mixed", "superbench")[0].splitlines()
    numbers = json.loads(line)
    assert numbers.pop("node") == "node0"
    assert all(re.fullmatch(r"hpcbench/[^:/]+:0", name) and isinstance(value, (int, float))
               for name, value in numbers.items())
    assert numbers["hpcbench/return_code:0"] == 1
    codes = [name for name in numbers if name.endswith("_return_code:0")]
    times = [name for name in numbers if name.endswith("_time:0")]
    assert (len(codes), len(times)) == (3, len(ok_cases("mixed")))
    assert not any(name.replace("_return_code", "_time") in numbers for name in codes)
    healthy = json.loads(export("collective", "superbench")[0])
    assert healthy["hpcbench/return_code:0"] == 0


# tables


def test_csv_has_a_row_for_each_case_and_marks_bad_ones() -> None:
    rows = list(csv.DictReader(io.StringIO(export("mixed", "csv")[0])))
    for row, case in zip(rows, summary("mixed"), strict=True):
        assert (row["case_id"], row["status"]) == (case["case_id"], case["status"])
        if case["status"] == "ok":
            assert float(row["median_s"]) == case["median_s"]
            assert row["reason"] == ""
            low_s = case["ci_low_s"] if case["ci_reliable"] else None
            assert row["ci_low_s"] == ("" if low_s is None else str(low_s)), "reliable ones only"
        else:
            assert row["median_s"] == row["busbw_bytes_per_s"] == "" and row["reason"]
    assert "nan" not in {value for row in rows for value in row.values()}


def test_parquet_has_the_same_values_with_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [RESULTS["mixed"], RESULTS["training"]]
    exported, _ = export_files(paths, "parquet", ExportRequest())
    target = tmp_path / "runs.parquet"
    target.write_bytes(exported.content)
    stored = parquet.read_table(target).to_pylist()
    text, _ = export_files(paths, "csv", ExportRequest())
    rows = list(csv.DictReader(io.StringIO(text.content.decode())))
    assert len(stored) == len(rows) == len(summary("mixed")) + len(summary("training"))
    for one, row in zip(stored, rows, strict=True):
        assert {name: "" if value is None else str(value) for name, value in one.items()} == row
    assert isinstance(stored[0]["median_s"], float) and isinstance(stored[0]["world_size"], int)


@pytest.mark.parametrize(("to", "library"), [("parquet", "pyarrow"), ("tensorboard",) * 2])
def test_a_format_without_its_library_is_one_line(
    to: str, library: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=f"{to} needs ") as error:
        export("mixed", to)
    assert "\n" not in str(error.value) and f"[{to}]" in str(error.value)


# a timeline


def test_tensorboard_reads_the_samples_that_medians_are_made_of(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator",
                                 reason="tensorboard is not installed")
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(export_files([RESULTS["training"]], "tensorboard", ExportRequest())[0].content)
    read = reader.EventAccumulator(str(path)).Reload()
    with open_results(RESULTS["training"]) as file:
        run = exported_run(file)
    curves = {case.slug: case for case in run.measured}
    assert {tag.partition("/")[0] for tag in read.Tags()["scalars"]} == {*curves}
    for slug, case in curves.items():
        assert (stats := case.item.statistics) is not None
        times = [event.value for event in read.Scalars(f"{slug}/time_s")]
        assert len(times) == stats.n and np.median(times) == pytest.approx(stats.median_s, rel=1e-6)
        tags = {tag for tag in read.Tags()["scalars"] if tag.startswith(f"{slug}/")}
        assert {f"{slug}/data_s", f"{slug}/optimizer_s"} <= tags or "communication" in slug
        for one in case.metrics[1:]:
            rates = [event.value for event in read.Scalars(f"{slug}/{one.name}")]
            assert rates == pytest.approx([one.value * stats.median_s / time for time in times])


def test_a_timeline_has_chosen_samples_of_all_ranks() -> None:
    document = json.loads(export("training", "perfetto", samples=3)[0])
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    by_case: dict[str, set[int]] = {}
    for event in events:
        assert event["ts"] >= 0 and event["dur"] >= 0
        if event["tid"] == 0:
            by_case.setdefault(event["args"]["case_id"], set()).add(event["args"]["sample"])
            next_us = event["ts"]  # of the sample's phases, which do not overlap
        else:
            assert event["ts"] == pytest.approx(next_us)
            next_us += event["dur"]
    assert min(event["ts"] for event in events) == 0
    assert by_case.keys() == {case["case_id"] for case in ok_cases("training")}
    assert {len(samples) for samples in by_case.values()} == {3}
    assert {event["pid"] for event in events} == {0, 1}
    assert {event["name"] for event in events if event["tid"] == 1} >= {"forward", "backward"}
    names = [event for event in document["traceEvents"] if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in names] == ["rank 0 (node0)", "rank 1 (node0)"]


def test_the_longest_sample_is_in_the_timeline(opened: ExportedRun) -> None:
    case = opened.measured[0]
    events = [event for event in timeline(replace(opened, cases=(case,)), 1) if event["ph"] == "X"]
    samples = opened.source.samples(case.item.case.case_id)
    (at,) = {event["args"]["sample"] for event in events}
    assert events[0]["dur"] * 1e3 == pytest.approx(
        int(samples.end_ns[0, at] - samples.start_ns[0, at]))
    assert samples.use is not None
    took_ns = {number: int(samples.end_ns[:, number].max() - samples.start_ns[:, number].min())
               for number in np.flatnonzero(counts(samples.use)).tolist()}
    ordered = sorted(took_ns, key=took_ns.__getitem__)
    middle = ordered[(len(ordered) - 1) // 2]
    assert len(ordered) % 2 == 0 and {middle, ordered[-1]} == {
        event["args"]["sample"] for event in timeline(replace(opened, cases=(case,)), 2)
        if event["ph"] == "X"}


def timeline(run: ExportedRun, samples: int) -> list[dict[str, Any]]:
    exported = as_perfetto([run], ExportRequest(samples=samples))
    return list(json.loads(exported.content)["traceEvents"]) if exported.content else []


def test_ranks_of_several_clocks_are_put_on_one(opened: ExportedRun) -> None:
    clocks = opened.results.clocks
    assert clocks is not None
    apart = replace(opened, cases=opened.measured[:1], results=replace(
        opened.results, clocks=replace(clocks, n_clocks=2)))
    late = replace(ClockModel.identity(0), offset_ns=1_000_000)  # rank 1's clock is 1 ms ahead
    models: Mapping[int, Sequence[ClockModel]] = {0: [ClockModel.identity(0)], 1: [late]}
    first, second = (
        {(event["pid"], event["args"]["sample"]): event for event in timeline(run, 1000)
         if event["ph"] == "X"} for run in (replace(opened, cases=apart.cases),
                                            replace(apart, clocks=models)))
    shift = {rank: {round(second[key]["ts"] - first[key]["ts"], 3) for key in first
                    if key[0] == rank} for rank in (0, 1)}
    assert {len(values) for values in shift.values()} == {1}
    assert shift[0].pop() - shift[1].pop() == pytest.approx(1000)
    assert not timeline(replace(apart, clocks={0: models[0]}), 3)


# the command


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return hpcbench("export", *map(str, words))


def test_the_command_writes_whole_files_and_replaces_none(tmp_path: Path) -> None:
    target = tmp_path / "fom.txt"
    done = run(RESULTS["mixed"], "--to", "fom", "-o", target)
    assert (done.returncode, done.stdout) == (0, f"{target}\n")
    assert target.read_text(encoding="utf-8") == run(RESULTS["mixed"], "--to", "fom").stdout
    assert sum(line.startswith("hpcbench: left out: ") for line in done.stderr.splitlines()) == 3
    target.write_text("mine", encoding="utf-8")
    again = run(RESULTS["mixed"], "--to", "fom", "-o", target)
    assert again.returncode == 2 and len(again.stderr.splitlines()) == 1
    assert target.read_text(encoding="utf-8") == "mine"
    assert run(RESULTS["mixed"], "--to", "fom", "-o", target, "--force").returncode == 0
    assert target.read_text(encoding="utf-8") != "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["fom.txt"]


@pytest.mark.parametrize("words", [
    ["nothere", "--to", "csv"], [RESULTS["mixed"], "--to", "cvs"],
    [RESULTS["mixed"], RESULTS["training"], "--to", "fom"],
    [RESULTS["mixed"], "--to", "fom", "--only", "zzz"],
    [RESULTS["mixed"], "--to", "fom", "--metric", "zzz"],
    [RESULTS["training"], "--to", "nccl-tests"], [ROOT / "README.md", "--to", "csv"]],
    ids=lambda words: " ".join(str(word).split("/")[-1] for word in words))
def test_bad_input_is_one_line(words: list[object], tmp_path: Path) -> None:
    done = run(*words, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and not [*tmp_path.iterdir()]


def test_every_format_is_in_the_help_and_on_the_page() -> None:
    told = run("--help").stdout
    page = (ROOT / "docs" / "other-tools.md").read_text(encoding="utf-8")
    for name in FORMATS:
        assert re.search(rf"\b{name}\b", told) and f"`{name}`" in page


def test_wrong_results_are_counted_as_nccl_tests_does(tmp_path: Path) -> None:
    """Each measurement once, not its elements: a table that is read is written with its count."""
    path = tmp_path / "wrong.log"
    log = ROOT / "tests" / "data" / "foreign" / "all_reduce_8.txt"
    path.write_text(log.read_text().replace("56.90       0", "56.90       7", 1).replace(
        "values : 0 OK", "values : 1 FAILED"))
    import_files([path], tmp_path / "wrong.h5", UserFacts())
    done = hpcbench("export", str(tmp_path / "wrong.h5"), "--to", "nccl-tests")
    assert "Out of bounds values : 1 FAILED" in done.stdout


def test_the_page_lists_the_columns_of_a_run() -> None:
    page = (ROOT / "docs" / "other-tools.md").read_text("utf-8")
    listed = page.partition("in SI units, behind ")[2].partition(";")[0]
    assert re.findall(r"`(\w+)`", listed) == [*OF_RUN]
