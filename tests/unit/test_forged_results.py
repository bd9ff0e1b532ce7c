"""Results whose check sum is right and whose content no run can have: one line, code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from bad_input_process import hpcbench
from golden import RUNS
from hpcbench.reduce.results import SCHEMA_VERSION
from hpcbench.reduce.results_file import FORMAT, open_results
from hpcbench.trace import columns as stored
from hpcbench.trace.container import new_container
from hpcbench.trace.source import UnreadableTrace

LARGE = 10**12
COLUMNS: dict[str, Any] = {
    "median_s": [np.nan, np.inf, -np.inf, -1.0], "p95_s": [np.inf, -1e-6], "n": [-1],
    "status": ["fine"], "blamed_rank": [2, LARGE], "sample_offset": [-2, LARGE],
    "sample_ranks": [-1, LARGE], "sample_iterations": [-1, 2**62]}
TEXTS: dict[str, dict[str, Any]] = {
    "plan": {"world_size": [0, -1, LARGE, 3, "2", None], "passes": [0, "x"]},
    "run": {"world_size": [0, LARGE, 3], "ranks_present": [[0, 0], [-1], [LARGE], "all"]},
    "cases/timing": {"fold": ["mean"], "calls": [10**30, "1"], "local_max_s": [float("inf")],
                     "launch_medians_s": [[float("nan")], 1]},
    "cases/detail": {"reason": [5], "device": [None], "detail": [[1]], "library": ["gloo"]}}


def forged(path: Path, name: str, values: Any) -> Path:
    """Write a copy of a run's results in which a dataset has other values."""
    with h5py.File(RUNS["collective"] / "results.h5") as sealed, \
            new_container(path, FORMAT, SCHEMA_VERSION) as copy:
        for part in (name for name in sealed if name not in copy):  # the seal
            sealed.copy(part, copy)
        copy.attrs.update(sealed.attrs)
        del copy[name]
        if isinstance(values, str):
            stored.write_lines(copy, name, values.split("\n"))
        elif values is not None:
            stored.write_column(copy, name, values)
    return path


def original(name: str) -> Any:
    with h5py.File(RUNS["collective"] / "results.h5") as sealed:
        return stored.read_column(sealed, name)


def refused(path: Path, *command: str) -> None:
    done = hpcbench(*(command or ("show",)), str(path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1 and str(path) in done.stderr
    assert len(done.stderr) < 400 + len(str(path))


@pytest.mark.parametrize(("column", "value"), [
    (column, value) for column, values in COLUMNS.items() for value in values])
def test_a_value_that_no_run_has(tmp_path: Path, column: str, value: Any) -> None:
    values = original(f"cases/{column}")
    if isinstance(value, str):
        values = stored.text_column([value, *stored.texts_of(values)[1:]])
    else:
        values[0] = value
    refused(forged(tmp_path / "results.h5", f"cases/{column}", values))


@pytest.mark.parametrize(("name", "key", "value"), [
    (name, key, value) for name, keys in TEXTS.items()
    for key, values in keys.items() for value in values])
def test_a_text_that_no_run_has(tmp_path: Path, name: str, key: str, value: Any) -> None:
    first, *others = stored.lines_of(original(name))
    line = json.dumps(json.loads(first) | {key: value})
    refused(forged(tmp_path / "results.h5", name, "\n".join([line, *others])))


@pytest.mark.parametrize("name", ["samples/start_ns", "samples/rank", "cases/median_s", "plan"])
def test_a_part_that_is_short_or_missing(tmp_path: Path, name: str) -> None:
    refused(forged(tmp_path / "gone.h5", name, None))
    if name != "plan":
        refused(forged(tmp_path / "short.h5", name, original(name)[:-1]))


@pytest.mark.parametrize("words", [
    ("check", "--baseline", str(RUNS["collective"])), ("advise",), ("report",),
    ("export", "--to", "nccl-tests"), ("compare", str(RUNS["collective"]))])
def test_every_command_refuses_them(tmp_path: Path, words: tuple[str, ...]) -> None:
    values = original("cases/median_s")
    values[0] = np.nan
    refused(forged(tmp_path / "results.h5", "cases/median_s", values), *words)


@pytest.mark.parametrize("name", ["clock/n_used", "clock/rank"])
def test_a_column_that_is_read_later_is_missing(tmp_path: Path, name: str) -> None:
    path = forged(tmp_path / "results.h5", name, None)
    with open_results(path) as file, pytest.raises(UnreadableTrace, match=r"results\.h5"):
        file.clock_models()
