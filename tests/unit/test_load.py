"""hpcbench.load: what it gives equals what the commands print, as objects and as tables."""

from __future__ import annotations

import csv
import math
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcbench
from golden import RESULTS
from hpcbench.errors import FileError
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.schema import Flag
from hpcbench.trace.source import UnreadableTrace
from launcher import ROOT

EXPECTED = ROOT / "tests/data/golden/expected"


@pytest.mark.parametrize("name", RESULTS)
def test_values_are_those_of_the_summary(name: str, tmp_path: Path) -> None:
    runs = hpcbench.load(RESULTS[name])
    frame = runs.to_pandas().set_index("case_id")
    with (EXPECTED / name / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["case_id"] for row in rows] == [case.case_id for case in runs.cases]
    for row, case in zip(rows, runs.cases, strict=True):
        assert (row["label"], row["status"]) == (case.label, case.status)
        assert -1 not in case.metrics.values(), "which stands for none"
        assert frame.loc[case.case_id, "backend"] == row["backend"] == case.parameters["backend"]
        if row["median_s"]:
            assert case.median_s == pytest.approx(float(row["median_s"]))
            assert frame.loc[case.case_id, "median_s"] == case.median_s == case.metrics["median_s"]
        else:
            assert case.median_s is None and math.isnan(frame.loc[case.case_id, "median_s"])
        assert (case.interval is None) == (row["ci_reliable"] != "True")
    (run,) = runs.runs
    for rows in (frame, runs.to_pandas(samples=True)):
        assert set(zip(rows["run_id"], rows["run"], strict=True)) <= {(run.run_id, run.name)}
    assert frame.attrs["runs"][0]["run_id"] == run.run_id != run.name


@pytest.mark.parametrize("name", RESULTS)
def test_samples_are_those_of_the_file(name: str) -> None:
    runs = hpcbench.load(str(RESULTS[name]))
    frame = runs.to_pandas(samples=True)
    with open_results(RESULTS[name]) as file:
        for case in runs.cases:
            raw = file.samples(case.case_id)
            if raw is None:
                assert case.samples.size == 0
                continue
            calls = np.where(raw.flags[0] & Flag.SINGLE, 1, case.metrics["batch"])
            expected = (raw.end_ns - raw.start_ns) / 1e9 / calls
            assert np.allclose(case.samples, expected)
            own = frame[frame["case_id"] == case.case_id]
            assert len(own) == expected.size
            of_last = own[own["rank"] == raw.ranks[-1]].sort_values("iteration")
            assert np.allclose(of_last["seconds"], expected[-1])
            assert list(of_last["counted"]) == list(case.counted)
            assert set(case.phases) == set(raw.phases)


def test_several_runs_stand_in_one_table(tmp_path: Path) -> None:
    for name, path in RESULTS.items():
        (tmp_path / name).mkdir()
        shutil.copy2(path, tmp_path / name / "results.h5")
    runs = hpcbench.load(tmp_path / "*" / "results.h5")
    assert len(runs) == len(RESULTS)
    assert len(runs.to_pandas()) == len(runs.cases) == sum(
        len(hpcbench.load(path).cases) for path in RESULTS.values())
    again = hpcbench.load([tmp_path / name for name in sorted(RESULTS)])
    assert [run.run_id for run in again.runs] == [run.run_id for run in runs.runs]


def test_cases_are_filtered_by_what_distinguishes_them() -> None:
    cases = hpcbench.load(RESULTS["mixed"]).cases
    kinds = {case.parameters["kind"] for case in cases}
    for kind in kinds:
        found = cases.filter(kind=kind)
        assert {case.parameters["kind"] for case in found} == {kind}
        assert len(found) < len(cases)
    assert len(cases.filter(kind=kinds, status="ok")) == sum(c.status == "ok" for c in cases)
    assert cases[cases[0].case_id].label == cases[0].label and len(cases[:2]) == 2
    with pytest.raises(KeyError, match="bakcend"):
        cases.filter(bakcend="gloo")
    with pytest.raises(KeyError, match="nothing"):
        cases["nothing"]


def test_times_are_recomputed_from_stamps_as_the_page_says() -> None:
    """size_bytes is no parameter, and the maximum of each rank's own time is not what is printed.
    """
    for case in hpcbench.load(RESULTS["collective"]).cases.filter(fold="global"):
        stamps = case.run.samples(case.case_id)
        times_ns = stamps.end_ns.max(axis=0) - stamps.start_ns.min(axis=0)
        assert np.isclose(np.median(times_ns[case.counted]) / 1e9, case.median_s, rtol=1e-9)
        assert case.metrics["size_bytes"] <= case.parameters["requested_bytes"] or not (
            case.parameters["requested_bytes"])


def test_an_arrow_table_has_the_same_columns_and_names_its_run() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    runs = hpcbench.load(RESULTS["collective"])
    table = runs.to_arrow()
    assert isinstance(table, pyarrow.Table)
    assert table.column_names == list(runs.to_pandas().columns)
    assert runs.runs[0].run_id.encode() in table.schema.metadata[b"runs"]
    assert runs.to_arrow(samples=True).num_rows == len(runs.to_pandas(samples=True))
    absent = int(runs.to_pandas()["of_link"].isna().sum())  # SQL may overlook NaN in its Parquet
    assert absent and table["of_link"].null_count == absent


def test_a_polars_frame_has_the_same_columns() -> None:
    pytest.importorskip("polars", reason="polars is not installed")
    runs = hpcbench.load(RESULTS["collective"])
    assert runs.to_polars().columns == list(runs.to_pandas().columns)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = hpcbench.load(RESULTS["collective"])
    for library, asked in (("pandas", runs.to_pandas), ("polars", runs.to_polars),
                           ("pyarrow", runs.to_arrow)):
        monkeypatch.setitem(__import__("sys").modules, library, None)
        call: Callable[[], Any] = asked
        with pytest.raises(ImportError, match=library):
            call()


def test_what_is_no_results_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.h5").write_bytes(b"something else")
    for bad in ("none*.h5", "none.h5", "other.h5", "."):
        with pytest.raises(FileError) as raised:
            hpcbench.load(tmp_path / bad)
        assert "\n" not in str(raised.value)


def test_the_example_draws_and_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = runpy.run_path(str(ROOT / "examples/load_and_plot.py"))
    script["main"](RESULTS["collective"], tmp_path / "times.png")
    assert (tmp_path / "times.png").stat().st_size > 1000
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.png").unlink()
    script["main"](RESULTS["collective"])
    assert (tmp_path / "times.png").stat().st_size > 1000
    assert "median_s" in capsys.readouterr().out


def test_a_file_is_loaded_once_by_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy2(RESULTS["mixed"], tmp_path / "run" / "results.h5")
    (tmp_path / "latest").symlink_to("run")
    runs = hpcbench.load(str(tmp_path / "*" / "results.h5"))
    assert [one.path for one in runs.runs] == [tmp_path / "run" / "results.h5"]
    assert len(hpcbench.load([tmp_path / "run", tmp_path / "latest/results.h5"])) == 1
    (run,) = hpcbench.load(tmp_path / "run").runs
    assert run.path == tmp_path / "run" / "results.h5"


def test_samples_of_a_file_that_was_replaced_or_removed(tmp_path: Path) -> None:
    """They are those of the new file, which is checked; there are none where it is gone."""
    file = tmp_path / "results.h5"
    shutil.copy2(RESULTS["collective"], file)
    loaded = hpcbench.load(file)
    one = next(case for case in loaded.cases if case.samples.size)
    before = one.samples
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.unlink()
    file.write_bytes(damaged)
    with pytest.raises(UnreadableTrace):
        _ = one.samples
    shutil.copy(RESULTS["collective"], file)
    assert (one.samples == before).all()
    file.unlink()
    with pytest.raises(FileError):
        _ = one.samples


def test_without_samples_the_columns_are_there() -> None:
    frame = hpcbench.load([]).to_pandas(samples=True)
    assert len(frame) == 0 and not frame["counted"].any()
