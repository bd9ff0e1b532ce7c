"""Flipped bits in results: test_journal.py and test_sealed.py have those in each trace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hpcbench.errors import TraceError
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from synthetic import make_plan, write_synthetic_run


def test_in_results(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path, make_plan(n_cases=4, passes=2))
    reduce_folder(tmp_path)
    path = tmp_path / "results.h5"
    data, chance = path.read_bytes(), random.Random(200)
    for _ in range(200):
        position = chance.randrange(len(data))
        changed = bytearray(data)
        changed[position] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(TraceError), open_results(tmp_path):
            pytest.fail(f"a flip at {position} was not found")
