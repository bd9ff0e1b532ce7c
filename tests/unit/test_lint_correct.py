"""A correct table of any program gives no finding, however few digits it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import foreign_tables as written
from hpcbench.interop.formats.lint import lint
from hpcbench.interop.formats.reading.detect import tables_of

FAST = settings(max_examples=40, deadline=None,
                suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
COMM: dict[str, Callable[[written.Sweep], str]] = {
    "nccl_text": written.nccl_text, "nccl_json": written.nccl_json,
    "osu_rates": written.osu_rates, "param": written.param_text,
    "superbench": written.superbench_lines,
    "osu": lambda sweep: written.osu_text(sweep, full=sweep.each, checked=sweep.checked),
    "inspector": lambda sweep: written.inspector_lines(sweep, once=sweep.each),
}


def findings(path: Path, text: str) -> list[str]:
    path.write_text(text)
    tables = list(tables_of(path))
    assert tables
    return [str(found) for table in tables for found in lint(table)]


@pytest.mark.parametrize("name", COMM)
@given(sweep=written.sweeps())
@FAST
def test_a_correct_sweep(name: str, sweep: written.Sweep, tmp_path: Path) -> None:
    assert findings(tmp_path / "table", COMM[name](sweep)) == []


@given(sweep=written.sweeps())
@FAST
def test_a_correct_sweep_of_two_operators(sweep: written.Sweep, tmp_path: Path) -> None:
    lines = written.nccl_text(sweep).splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    other = [row.replace(" sum ", " max ", 1) for row in rows]
    at = lines.index(rows[-1]) + 1
    assert findings(tmp_path / "table", "\n".join([*lines[:at], *other, *lines[at:]])) == []


@given(st.integers(2, 8).flatmap(lambda n: st.lists(
    st.lists(st.floats(0.01, 1000), min_size=n, max_size=n), min_size=n, max_size=n)))
@FAST
def test_a_correct_matrix(tmp_path: Path, rows: list[list[float]]) -> None:
    assert findings(tmp_path / "table", written.nvbandwidth_json(rows)) == []


@given(st.lists(st.tuples(*(st.integers(1, 2**16),) * 3), min_size=1, max_size=8),
       st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=9))
@FAST
def test_correct_products(
    tmp_path: Path, shapes: list[tuple[int, int, int]], runs: list[float],
) -> None:
    assert findings(tmp_path / "table", written.ddlb_csv(shapes, runs)) == []
