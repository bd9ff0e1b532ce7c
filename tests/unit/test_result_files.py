"""Results that are given as a config: one line says what they are, and how they are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest
from typer.testing import CliRunner

from golden import EXPECTED, GOLDEN, RUNS
from hpcbench.cli import app
from hpcbench.config.load import load_config
from hpcbench.errors import UsageError
from hpcbench.trace.container import SEAL_BYTES
from hpcbench.trace.journal import MAGIC

FOREIGN = "hpcbench reads its own results only; give the config that they were made from"


def complaint(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(path)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(f"{path}: looks like ")
    return text.removeprefix(f"{path}: looks like ")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of a run's folder."""
    shutil.copytree(RUNS["training"], tmp_path / "run")
    for name in ("summary.json", "summary.csv"):
        shutil.copy(EXPECTED / "training" / name, tmp_path / "run")
    shutil.copy(GOLDEN / "configs/training.json", tmp_path / "run/config.json")  # its keys of today
    return tmp_path / "run"


@pytest.mark.parametrize(("name", "what", "shown"), [
    ("plan.json", "the plan of a run", "."), ("summary.json", "the summary of a run", "."),
    ("summary.csv", "the table of cases of a run", "."),
    ("results.h5", "the results of a run", "results.h5"), ("traces/rank00000.h5", "a trace", ".")])
def test_a_file_of_a_run_states_how_the_run_is_shown(
    run: Path, name: str, what: str, shown: str,
) -> None:
    assert complaint(run / name) == (
        f"{what}, not a config; hpcbench show {run / shown} prints it, and {run / 'config.json'} "
        "is its config")
    assert CliRunner().invoke(app, ["show", str(run / shown)]).exit_code == 0
    load_config(run / "config.json")


def test_a_journal_states_how_results_are_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    path = tmp_path / "traces/rank00000.journal"
    path.write_bytes(MAGIC + b"\0" * 100)
    assert complaint(path) == (f"the journal of a run, not a config; hpcbench reduce {tmp_path} "
                               "makes results of it")


def test_an_hdf5_file_of_others_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.json", "w"):
        pass
    assert complaint(tmp_path / "x.json") == (
        "an HDF5 file, not a config; give a JSON or YAML sweep file")


@pytest.mark.parametrize(("data", "what"), [
    ({"name": "x", "world_size": 2, "timestamp": "t", "config": {}, "results": {}},
     "results of a benchmark"),
    ([{"timestamp": 1, "results": {}}], "results of a benchmark"),
    ({"version": 3, "results": [], "out_of_bounds": {"count": 0}}, "results of nccl-tests (-J)"),
    ({"results": [], "average_bus_bandwidth": {}}, "results of nccl-tests (-J)"),
    ({"traceEvents": [], "schemaVersion": 1}, "a Chrome trace of a profiler"),
    ([{"ph": "X", "ts": 1, "name": "x"}], "a Chrome trace of a profiler")])
def test_results_of_others_are_named(tmp_path: Path, data: Any, what: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(data))
    assert complaint(path) == f"{what}, not a config; {FOREIGN}"


@pytest.mark.parametrize(("head", "what"), [
    (b"format hpcbench-results\nschema_version 2\n".ljust(SEAL_BYTES, b"\n"),
     "the results of a run"),
    (b"\x89HDF\r\n\x1a\n" + bytes(439) + b"format hpcbench-trace\nschema_version 2\n",
     "a trace"),
    (b'{"schemaVersion": 1, "traceEvents": [', "a Chrome trace of a profiler"),
    (b'{\n  "schema": "hpcbench.summary",', "the summary of a run")])
def test_large_results_are_named_by_how_they_begin(tmp_path: Path, head: bytes, what: str) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(2**30)
    assert complaint(path).startswith(f"{what}, not a config; ")


@pytest.mark.parametrize("words", [("plan",), ("list",)])
def test_what_a_command_prints_as_json_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "printed.json"
    path.write_text(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert complaint(path) == (f"JSON of hpcbench {words[0]}, not a config; give a sweep file; "
                               "hpcbench gen-config makes one")


def test_the_command_ends_with_code_2_in_one_line(run: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(run / "plan.json")])
    assert isinstance(done.exception, UsageError) and done.exception.exit_code == 2


def test_a_list_of_configs_is_reported_as_one(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps([{"hardware": {}}, {"hardware": {}}]))
    with pytest.raises(UsageError, match="is a list of 2 mappings, and a config is one; write each "
                       "to a file of its own"):
        load_config(path)
