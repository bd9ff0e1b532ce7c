"""What other programs read of results and traces, and of exports, with the real programs."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from golden import RESULTS
from hpcbench.fleet.history.change_points import steps
from hpcbench.interop.formats.export.cases import ExportedRun, ExportRequest, exported_run
from hpcbench.interop.formats.export.tables import as_otava
from hpcbench.interop.formats.export.write import export_files
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.sealed import seal
from install.test_base_install import pip_install
from launcher import ROOT

READERS = """
import sys
import h5py, netCDF4, numpy, pyfive, tables, xarray

path, group, name = sys.argv[1:]
with h5py.File(path) as file:
    expected = file[group][name][:]
with netCDF4.Dataset(path) as file:
    found = {"netCDF4": file[group][name][:].data}
with tables.open_file(path) as file:
    found["tables"] = file.get_node(f"/{group}/{name}").read()
for engine in (None, "h5netcdf", "netcdf4"):
    with xarray.open_dataset(path, group=group, engine=engine) as data:
        found[f"xarray {engine}"] = data[name].values
for reader, values in found.items():
    assert values.dtype == expected.dtype and numpy.array_equal(values, expected, equal_nan=True), (
        reader, values, expected)
try:  # an error or the right values, but never others
    with pyfive.File(path) as file:
        values = file[group][name][:]
except Exception:
    print("pyfive refuses")
else:
    assert numpy.array_equal(values, expected, equal_nan=True), values
    print("pyfive reads")
"""
H5WASM = """
import * as h5wasm from 'h5wasm/node';
await h5wasm.ready;
const [path, name] = process.argv.slice(2);
const values = new h5wasm.File(path, 'r').get(name).value;
console.log(JSON.stringify(Array.from(values, String)));
process.exit(0);
"""
COLUMN = "all_reduce_gloo_cpu_fp32_sum_64B_n=2.time"
OTAVA = f"""
tests:
  nightly:
    type: csv
    file: runs.csv
    time_column: time
    attributes: [commit]
    metrics:
      time: {{column: {COLUMN}, direction: -1}}
"""


def in_folder(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], text=True, capture_output=True, timeout=120,
                          cwd=folder, env={**os.environ, "PYTHONPATH": str(folder / "packages")})


def test_scientific_readers_have_the_values_of_h5py(tmp_path: Path) -> None:
    """Also of columns that are packed by ranges (scale-offset), which long runs have."""
    pip_install(Path(sys.prefix), "--target", str(tmp_path / "packages"),
                "xarray", "h5netcdf", "netCDF4", "tables", "pyfive")
    shutil.copytree(ROOT / "tests" / "data" / "golden" / "runs" / "training", tmp_path / "run")
    reduce_folder(tmp_path / "run")
    seal(ROOT / "tests" / "data" / "journal-v2-phases.journal", tmp_path / "rank.h5")
    for path, group, name in (
            ("run/results.h5", "cases", "median_s"), ("run/results.h5", "samples", "start_ns"),
            ("run/results.h5", "phases", "ns"), ("rank.h5", "samples", "end_ns")):
        done = in_folder(tmp_path, sys.executable, "-c", READERS, path, group, name)
        assert done.returncode == 0, done.stderr


def test_viewers_in_browsers_have_the_values_of_h5py(tmp_path: Path) -> None:
    """h5web and myHDF5 read by h5wasm; that it unpacks ranges keeps these in our files."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm: h5wasm is a package of it")
    done = in_folder(tmp_path, npm, "install", "--silent", "h5wasm")
    assert done.returncode == 0, done.stderr
    (tmp_path / "read.mjs").write_text(H5WASM)
    run = tmp_path / "run"
    shutil.copytree(ROOT / "tests" / "data" / "golden" / "runs" / "training", run)
    reduce_folder(run)
    for name in ("samples/start_ns", "cases/world_size"):
        done = in_folder(tmp_path, "node", "read.mjs", run / "results.h5", name)
        with h5py.File(run / "results.h5") as file:
            assert file["samples/start_ns"].scaleoffset is not None
            assert json.loads(done.stdout) == [str(value) for value in file[name][:]], done.stderr


def test_promtool_objects_to_no_name_of_ours(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: it is in Debian's package prometheus")
    for path in RESULTS.values():
        exported, _ = export_files([path], "prometheus", ExportRequest())
        done = subprocess.run([promtool, "check", "metrics"], input=exported.content,
                              capture_output=True, timeout=60)
        lines = [*filter(None, (done.stdout + done.stderr).decode().splitlines())]
        assert done.returncode in (0, 3) and not [
            line for line in lines if not line.startswith("nccl_")], lines


def test_otava_finds_a_step_in_the_columns_that_it_gets(tmp_path: Path) -> None:
    """The configuration is that of docs/other-tools.md; one run lacks a case."""
    pip_install(Path(sys.prefix), "--target", str(tmp_path / "packages"), "apache-otava")
    assert OTAVA.strip() in (ROOT / "docs" / "other-tools.md").read_text("utf-8")
    (tmp_path / "otava.yaml").write_text(OTAVA)
    content = as_otava(thirty_runs(), ExportRequest()).content
    (tmp_path / "runs.csv").write_bytes(content)
    done = in_folder(tmp_path, sys.executable, "-m", "otava.main", "analyze", "nightly",
                     "--config-file", "otava.yaml", "--since", "2026-01-01", "--output", "json")
    assert [(change["metric"], change["index"]) for row in json.loads(done.stdout)["nightly"]
            for change in row["changes"]] == [("time", 20)], done.stderr
    times = [float(row[COLUMN]) for row in csv.DictReader(io.StringIO(content.decode()))]
    assert [step.index for step in steps(np.array(times))] == [20], "as Otava finds"


def thirty_runs() -> list[ExportedRun]:
    """A run a day; the times of the last ten are 5 % longer, the sixth lacks the last case."""
    with open_results(RESULTS["collective"]) as file:
        given, chance = exported_run(file), random.Random(1)
    runs = []
    for day in range(30):
        factor = (1.05 if day >= 20 else 1) * chance.gauss(1, .004)
        cases = [replace(case, metrics=tuple(
            replace(one, value=one.value * factor) for one in case.metrics))
            for case in given.measured]
        info = replace(given.results.run, started_at=f"2026-09-{day + 1:02}T03:00:00+0000")
        runs.append(replace(given, results=replace(given.results, run=info),
                            cases=(*cases[:-1 if day == 5 else None],)))
    return runs
