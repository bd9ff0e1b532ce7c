"""docs/results-file.md has the parts of the files, and recomputes their columns."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbench.config.axes import UNCHECKED
from hpcbench.config.load import check_config
from hpcbench.interop.formats.imported import import_files
from hpcbench.interop.formats.imported_rows import UserFacts
from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan as plan_config
from hpcbench.reduce import run_checks as environments
from hpcbench.reduce.kind_facts import COLUMNS, LINES_OF_CASES, deriver_of
from hpcbench.reduce.metric import KindColumns
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import RankTelemetry
from hpcbench.reduce.results_file import ATTRIBUTES as OF_RESULTS
from hpcbench.reduce.results_file import CONTENTS as TELEMETRY
from hpcbench.reduce.results_file import contents, open_results
from hpcbench.reduce.roofline import ROOFLINE
from hpcbench.report.summary import case_rows, summary_document, write_summary
from hpcbench.trace.columns import write_json
from hpcbench.trace.schema import Flag, Record
from hpcbench.trace.sealed import ATTRIBUTES as OF_TRACE
from hpcbench.trace.sealed import CLOCKS, seal, write_clocks
from hpcbench.trace.sealed import CONTENTS as OF_A_TRACE
from launcher import ROOT
from results_factory import make_results
from synthetic import make_case, make_plan, plan_of, with_rows, write_synthetic_run

PAGE = (ROOT / "docs" / "results-file.md").read_text("utf-8")
BESIDE_CEILINGS = {column.name for column in ROOFLINE} | {
    "of_link", "of_measured_link", "measured_link_bytes_per_s", "of_measured_product",
    "of_declared_product", "mfu", "mfu_of_measured"}
"""Columns that are empty in runs that measure and declare no peak."""
KINDS = ("collective", "primitive", "training")
"""Kinds that the stored runs have cases of."""
RUNS = ROOT / "tests" / "data" / "golden" / "runs"
Parts = Mapping[str, h5py.Group | h5py.Dataset]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with cases of all kinds."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    shutil.copytree(RUNS / "mixed", folder)
    reduce_folder(folder)
    return folder


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of rank 0 of all kinds, with phases."""
    path = tmp_path_factory.mktemp("trace") / "rank00000.h5"
    seal(ROOT / "tests" / "data" / "journal-v2-phases.journal", path)
    return path


def parts(file: h5py.File) -> Parts:
    found: dict[str, Any] = {}
    file.visititems(found.__setitem__)
    return found


def test_results_have_the_parts_of_the_page(results: Path) -> None:
    told = contents(KindColumns())
    own = {f"cases/{column.name}" for spec in kinds().values()
           for column in deriver_of(spec).columns}
    with h5py.File(results / "results.h5") as file:
        found = parts(file)
        assert {name for name in told if not of_telemetry(name)} - {"/"} <= found.keys()
        assert found.keys() - told.keys() <= own
        for name, item in found.items():
            assert bool(item.attrs.get("units", "")) == isinstance(item, h5py.Dataset)
            assert name in own or item.attrs["description"] == told[name].text
        named = {"names", "values", "bits", "derived", "apart"}
        others = {attribute for item in found.values() for attribute in item.attrs}
        assert others - {"description", "units"} == named


def of_telemetry(name: str) -> bool:
    """Return whether only runs that read the machine have it; these older runs did not."""
    return name in TELEMETRY or name == "cases/usage"


def test_the_page_names_every_key_of_the_summary() -> None:
    summary = PAGE[PAGE.index("## summary.json and summary.csv"):]
    results = replace(make_results(()), telemetry=(RankTelemetry(0, 0, 2.0),))
    document = summary_document(results, [])
    missing = {name for name in document if f"`{name}`" not in summary}
    assert missing == {"cases", "schema_version"}


def test_a_trace_has_the_parts_of_the_page(trace: Path) -> None:
    with h5py.File(trace) as file:
        found = parts(file)
        told = {name for name in OF_A_TRACE if not name.startswith("telemetry")} - {"/", "plan"}
        assert told <= found.keys() <= {*OF_A_TRACE}
        assert all(item.attrs["description"] == OF_A_TRACE[name].text
                   for name, item in found.items())


def test_each_attribute_of_the_files_is_described(results: Path, trace: Path) -> None:
    for path, attributes in ((results / "results.h5", OF_RESULTS), (trace, OF_TRACE)):
        with h5py.File(path) as file:
            told = dict(line.split(": ", 1) for line in file.attrs["attributes"])
            assert told.keys() == {*file.attrs} - {"description", "attributes"}
            assert told.items() <= attributes.items()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_one_kind_has_its_columns(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    shutil.copytree(RUNS / kind, folder)
    items = reduce_folder(folder).cases
    own = {column.name for column in deriver_of(kinds()[kind]).columns}
    with h5py.File(folder / "results.h5") as file:
        cases = file["cases"]
        assert {*cases} - {*LINES_OF_CASES} == {column.name for column in COLUMNS} | own
        assert cases["kind"].asstr()[:].tolist() == [kind] * len(items)
        assert cases["backend"].asstr()[:].tolist() == [item.case.backend for item in items]
        filled = {name for name in own if any(
            str(value) not in ("", "-1", "nan", "b''") for value in cases[name][:].tolist())}
        own -= BESIDE_CEILINGS
        assert len(filled & own) > 0.7 * len(own), own - filled


def test_rates_are_those_of_the_medians(results: Path) -> None:
    with h5py.File(results / "results.h5") as file:
        read = {name: file[f"cases/{name}"][:] for name in (
            "kind", "status", "size_bytes", "median_s", "algbw_bytes_per_s", "busbw_factor",
            "busbw_bytes_per_s", "global_batch", "samples_per_s")}
    some = (read["status"] == b"ok") & (read["busbw_factor"] > 0)
    assert some.any()
    algbw = read["size_bytes"][some] / read["median_s"][some]
    assert read["algbw_bytes_per_s"][some] == pytest.approx(algbw)
    assert read["busbw_bytes_per_s"][some] == pytest.approx(algbw * read["busbw_factor"][some])


@pytest.mark.parametrize("snippet", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL),
                         ids=["h5py"])
def test_a_plot_can_be_made(
    results: Path, snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert snippet.count("\n") <= 17
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "latest").symlink_to(results)
    monkeypatch.chdir(tmp_path)
    with (results / "results.h5").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as on a share that has no locks
        exec(compile(snippet, "docs/results-file.md", "exec"), {})
    assert (tmp_path / "busbw.png").stat().st_size > 5000


def test_both_ways_to_write_clocks_describe_the_same(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_clocks(file, [])
        assert {f"clock/{name}" for name in file["clock"]} | {"clock"} == CLOCKS.keys()


def test_the_topics_of_the_environment_are_those_of_their_page(results: Path) -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text("utf-8").split("\n#")[1]
    topics = {name for line in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
              for name in re.findall("`(\\w+)`", line)}
    with h5py.File(results / "results.h5") as file:
        environment = json.loads(file["run"][0])["environment"]
    later = {"gpu_topology"}  # these traces are older
    rare = {"faults", "lost"}
    assert topics - rare - later == environment.keys() - rare
    assert {"MOMENTARY", "RANK_SPECIFIC"} <= vars(environments).keys()


SCRIPT = ROOT / "docs" / "recompute.py"
PLANNED = {
    "world_size", "groups", "group_stride", "warmup", "iterations", "batch", "calls", "validate",
    "checks", "cuda_graph", "root", "in_place", "asynchronous", "requested_bytes", "size_bytes",
    "count", "busbw_factor", "n_wrong", "blamed_rank"}
"""Columns that are of the plan, or of what is not timed."""
TAKEN = {"ci_rank", "ci_reliable", "all_count", "clock_bound_s", "sample_offset", "sample_ranks",
         "sample_iterations"}
"""What the script takes as it is, to find samples and the ends of the interval."""
UNFLAGGED_NEVER = {"ci_low_s", "ci_high_s", "launch_low_s", "launch_high_s"}
NOT_OF_SAMPLES = {"first_call_s", "communicator_s", "enqueue_s", "device_s"}


def script(folder: Path) -> tuple[int, str]:
    """Run the script; return its exit code and what it printed."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["recompute.py", str(folder / "results.h5")]
    try:
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as end:
            exec(compile(SCRIPT.read_text("utf-8"), SCRIPT, "exec"), {})
    finally:
        sys.argv = before
    return int(end.value.code or 0), printed.getvalue()


def noisy(rank: int, record: Record) -> Iterable[Record]:
    """Change the times: a slow start, late starts, stalls, and launches that differ."""
    random = np.random.default_rng([rank, record.launch, record.pass_index])
    samples = record.samples.rows()
    samples[:, 1] += random.integers(0, 9000, len(samples)) + 3000 * record.launch
    samples[2:8, 1] += 30_000
    samples[20::11, 1] += 400_000
    samples[5::9, 4] |= Flag.LATE_START
    samples[:, 0] += 1000 * rank
    rows = len(samples) - (7 * record.pass_index if record.stop_reason == "converged" else 0)
    yield with_rows(record, samples[:rows])


def reduced(folder: Path, plan: Plan) -> Path:
    write_synthetic_run(folder, plan, change=noisy)
    write_summary(reduce_folder(folder), folder)
    return folder


def _strided() -> Plan:
    """Return a case of two groups whose ranks are two apart."""
    case = make_case(world_size=4, iterations=60, mode="isolated")
    work = replace(case.workload, groups=2, group_stride=2)  # type: ignore[type-var]
    return plan_of([replace(case, workload=work)], 4, passes=2)


def plans() -> dict[str, Plan]:
    auto = {"min_iterations": 30, "iterations": 70}
    return {
        "given": make_plan(2, world_size=3, passes=3, iterations=60, mode="isolated"),
        "auto": make_plan(2, passes=3, **auto),
        "pipelined": make_plan(1, passes=2, mode="pipelined", batch=4, check=UNCHECKED,
                               **auto),
        "three launches": make_plan(2, passes=2, launches=3, mode="isolated", **auto),
        "groups with a stride": _strided(),
        "seven launches": make_plan(1, passes=2, launches=7, **auto),
        "mpi": plan_of([make_case(0, backend="mpi", **auto)], 2, 2, 3),
    }


@pytest.mark.parametrize("name", plans())
def test_every_number_is_recomputed_from_the_stored_samples(tmp_path: Path, name: str) -> None:
    folder = reduced(tmp_path / "run", plans()[name])
    code, printed = script(folder)
    assert code == 0 and " 0 differ" in printed and int(printed.split()[0]) > 25, printed
    changed = change(folder / "results.h5") - PLANNED - NOT_OF_SAMPLES - TAKEN
    code, printed = script(folder)
    named = {line.split()[1].rstrip(":") for line in printed.splitlines()[:-1]}
    assert code == 1 and not changed - named


def change(path: Path) -> set[str]:
    """Make every number of the first case another one; return the names of those that are there."""
    names = set()
    with h5py.File(path, "r+") as file:
        for name, column in file["cases"].items():
            if column.dtype.kind in "if" and np.isfinite(column[0]) and column[0] != -1 and (
                    name not in PLANNED | TAKEN):
                column[0] += 1
                names.add(name)
        first, *others = (json.loads(line) for line in file["cases/timing"][0].splitlines())
        for name in ("launch_medians_s", "pass_medians_s"):
            first[name] = [2 * one for one in first[name]]
            names.add(name)
        for name, value in (first["unflagged"] or {}).items():
            if isinstance(value, float):
                first["unflagged"][name] = 2 * value
                names.add(f"unflagged_{name}")
        del file["cases/timing"]
        write_json(file, "cases/timing", [first, *others])
        file["cases/timing"].attrs["units"] = "JSON lines"
    return names - {f"unflagged_{name}" for name in UNFLAGGED_NEVER}


@pytest.mark.parametrize("kind", ["collective", "primitive", "training"])
def test_so_are_those_of_real_runs(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    shutil.copytree(RUNS / kind, folder)
    write_summary(reduce_folder(folder), folder)
    code, printed = script(folder)
    assert code == 0 and int(printed.split()[0]) > 50, printed


def test_beside_other_kinds_a_column_that_a_case_lacks_is_left_alone(tmp_path: Path) -> None:
    plan = plan_config(check_config({"measure": {"iterations": 30}, "benchmarks": [
        {"kind": "hardware", "test": "gemm", "shape": "64"},
        {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
         "implementations": "torch"}]}, ""), 2)
    code, printed = script(reduced(tmp_path / "run", plan))
    assert code == 0 and int(printed.split()[0]) > 25, printed


def test_imported_tables_have_no_samples_and_are_counted(tmp_path: Path) -> None:
    table = ROOT / "tests" / "data" / "foreign" / "all_reduce_8.txt"
    import_files([table], tmp_path / "results.h5", UserFacts())
    code, printed = script(tmp_path)
    assert (code, printed.splitlines()) == (0, [
        "0 numbers recomputed, 0 differ; 8 cases left out: on several clocks, or without samples"])


def test_launches_and_repeats_have_the_precision_that_they_can_have(tmp_path: Path) -> None:
    def row(name: str) -> dict[str, Any]:
        folder = reduced(tmp_path / name, plans()[name])
        with open_results(folder) as file:
            return case_rows(file.results)[0]

    three, seven, mpi = map(row, ("three launches", "seven launches", "mpi"))
    assert (three["ci_low_s"], three["ci_level"], three["launch_level"]) == (None, None, 0.75)
    assert three["launch_low_s"] == min(three["launch_medians_s"])
    assert (seven["ci_unit"], seven["ci_rank"], seven["ci_reliable"]) == ("launches", 1, True)
    assert (seven["ci_low_s"], seven["ci_high_s"]) == (
        min(seven["launch_medians_s"]), max(seven["launch_medians_s"]))
    assert (mpi["ci_unit"], mpi["launch_low_s"], mpi["launch_level"]) == ("passes", None, None)
    assert "repeats" in mpi["quality"] and mpi["ci_low_s"] < min(mpi["pass_medians_s"])
    assert "repeats" not in three["quality"]


def test_every_row_of_given_iterations_has_as_many_samples(tmp_path: Path) -> None:
    """A table once showed n=60 in one row and n=45 in another."""
    folder = reduced(tmp_path / "run", make_plan(4, passes=3, iterations=80))
    with open_results(folder) as file:
        rows = case_rows(file.results)
    assert {row["n"] for row in rows} == {240} and all(row["all_count"] for row in rows)
    assert any(row["n_ramp"] for row in rows)
    assert all(row["unflagged_n"] < 240 and row["unflagged_p25_s"] is not None for row in rows)


def test_a_file_that_someone_has_locked_is_read_all_the_same(tmp_path: Path) -> None:
    """Shares that have no locks answer as one that is locked does: HDF5 refuses the file."""
    folder = reduced(tmp_path / "run", plans()["given"])
    with (folder / "results.h5").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, printed = script(folder)
    assert code == 0 and " 0 differ" in printed
