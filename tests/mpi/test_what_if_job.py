"""A gain that is predicted is put to the proof: both settings are measured in pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.operations.traffic import CallGroup, RankOrder, Signature, TrafficRecord, traffic_text
from hpcbench.reduce.reduce import reduce_folder
from launcher import MpiLauncher
from mpi.reading import QUICK
from synthetic import make_case, plan_of, write_synthetic_run

pytestmark = pytest.mark.mpi
CALLS, PASSES = 20, 3


def traffic() -> TrafficRecord:
    """A job of two ranks that calls all_reduce of 16 bytes."""
    form = Signature("all_reduce", "fp32", "sum", None, (4,), (4,), None, None, 0, CALLS, 16,
                     "gloo")
    orders = tuple(RankOrder(rank, (0,) * CALLS, tuple(range(CALLS)), (None,) * CALLS,
                             (1_000_000,) * CALLS, (0,) * CALLS) for rank in range(2))
    return TrafficRecord(("flight recorder 2.10",), ("a",), 2, (), (CallGroup("0", "", (0, 1)),),
                         (form,), orders)


def test_both_settings_are_measured_in_the_same_passes(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    record, proof, present = tmp_path / "t.json", tmp_path / "prove.json", tmp_path / "present"
    record.write_text(traffic_text(traffic()))
    sizes = {"requested_bytes": 16, "size_bytes": 16, "count": 4, "iterations": 20,
             "mode": "isolated"}
    write_synthetic_run(present, plan_of([  # the second case takes half as long
        make_case(1, **sizes), make_case(0, backend="mpi", **sizes)], 2, PASSES))
    reduce_folder(present)
    words = ["--traffic", str(record)]
    done = CliRunner().invoke(app, ["advise", str(present), *words, "--prove", str(proof)])
    assert done.exit_code == 0 and proof.exists(), done.output
    job = mpirun.run(2, command=(
        mpirun.program("python"), "-m", "hpcbench", "run", str(proof), "-o", str(tmp_path / "out"),
        "--passes", str(PASSES), "--iters", "20", *QUICK)).check()
    assert "gloo" in job.stdout and "mpi" in job.stdout
    done = CliRunner().invoke(app, ["advise", str(tmp_path / "out/latest"), *words, "--only",
                                    "what-if", "--json"])
    found = json.loads(done.stdout)["topics"]["what-if"]
    one = next(one for one in found["alternatives"] if one["name"] == "backend mpi")
    assert (one["pairs"], one["covered"], one["missing"]) == (PASSES, 1.0, "")
    assert one["time_s"] > 0 and one["change"]["low"] < one["change"]["value"]
    assert found["time_s"] == pytest.approx(CALLS / 1000)
