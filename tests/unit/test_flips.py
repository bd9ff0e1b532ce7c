"""Flipped bits in results and in a folder that is reduced: test_journal.py and test_sealed.py have
those in each trace."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.errors import TraceError
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.journal import journal_path
from hpcbench.trace.sealed import trace_path
from synthetic import make_plan, write_synthetic_run

PLAN = make_plan(n_cases=4, passes=2)
SOAK = [pytest.mark.soak, pytest.mark.timeout(600)]


def flipped(path: Path, flips: int) -> Iterator[int]:
    """Yield once per flip, with one bit of the file changed; restores the file in the end."""
    data, chance = path.read_bytes(), random.Random(flips)
    for _ in range(flips):
        position = chance.randrange(len(data))
        changed = bytearray(data)
        changed[position] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        yield position
    path.write_bytes(data)


@pytest.mark.parametrize("flips", [200, pytest.param(3200, marks=SOAK)])
def test_in_results(tmp_path: Path, flips: int) -> None:
    write_synthetic_run(tmp_path, PLAN)
    reduce_folder(tmp_path)
    for position in flipped(tmp_path / "results.h5", flips):
        with pytest.raises(TraceError), open_results(tmp_path):
            pytest.fail(f"a flip at {position} was not found")


@pytest.mark.parametrize("flips", [40, pytest.param(6800, marks=SOAK)])
def test_in_a_folder_that_is_reduced(tmp_path: Path, flips: int) -> None:
    """What the user sees: the same numbers, or a finding that names the file."""
    traces = write_synthetic_run(tmp_path / "run", PLAN, sealed=False)
    shutil.copy(journal_path(write_synthetic_run(tmp_path / "sealed", PLAN), 1)
                .with_suffix(".h5"), traces)
    journal_path(traces, 1).unlink()
    whole = _numbers(reduce_folder(tmp_path / "run"))
    for path in (journal_path(traces, 0), trace_path(traces, 1)):
        for position in flipped(path, flips // 2):
            results = reduce_folder(tmp_path / "run")
            named = [item for item in results.findings
                     if item.code in ("HB103", "HB104", "HB111", "HB136")]
            assert any(path.name in item.message for item in named), position
            numbers = _numbers(results)
            assert all(found in (whole[case_id], None) for case_id, found in numbers.items())


def _numbers(results: Results) -> dict[str, Any]:
    """Return the statistics of each case, None where it has none."""
    return {item.case.case_id: None if item.statistics is None else
            {name: None if value is None else np.float64(value)
             for name, value in asdict(item.statistics).items()}
            for item in results.cases}
