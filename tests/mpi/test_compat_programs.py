"""Programs with nccl-tests' names on real ranks, read as those read them that start them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcbench.interop.formats.lint import Linting
from launcher import EVERY_MPI, Finished, MpiLauncher
from unit.test_export import cloudai, dcgm_passes, superbench

pytestmark = pytest.mark.mpi

FAULTY = """
import sys
from hpcbench.interop.compat import program
translated = program.to_sweep
def with_fault(*given):
    sweep, remarks = translated(*given)
    return {**sweep, "fault": [{"kind": "wrong", "rank": 0, "case": "*1024B*"}]}, remarks
program.to_sweep = with_fault
program.main("all_reduce_perf")
"""


def words(mpirun: MpiLauncher, name: str, *more: str) -> Sequence[str]:
    return (mpirun.program("python"), "-m", f"hpcbench.compat.{name}", *more)


def lint_findings(job: Finished, file: Path) -> int:
    file.write_text(job.stdout, encoding="utf-8")
    linting = Linting("", None, as_json=True)
    linting.read(file)
    return linting.count


@EVERY_MPI
def test_the_text_is_a_correct_table_and_all_of_the_output(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    job = mpirun.run(2, command=words(
        mpirun, "all_reduce_perf", "-b", "8", "-e", "64K", "-f", "4", "-n", "5")).check()
    assert [row[0] for row in cloudai(job.stdout)] == [str(8 * 4**k) for k in range(7)]
    assert dcgm_passes(job.stdout) and superbench(job.stdout)
    assert not [line for line in job.stdout.splitlines() if line.strip() and line[0] not in "# "]
    assert " iters: 5 " in job.stdout and job.stderr == ""
    assert lint_findings(job, tmp_path / "table") == 0
    assert job.folder is None, "results are kept only where HPCBENCH_OUTPUT says so"
    mpirun.assert_no_orphans()


def test_without_a_launcher_it_starts_its_ranks_and_both_places_are_measured(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    file, kept = tmp_path / "out.json", tmp_path / "kept"
    job = mpirun.run(0, command=words(
        mpirun, "all_gather_perf", "-b", "4K", "-e", "16K", "-f", "4", "-d", "all", "-g", "2",
        "-J", str(file)), env={"HPCBENCH_OUTPUT": str(kept), "NCCL_TESTS_MIN_BW": "0"}).check()
    rows = cloudai(job.stdout)
    assert dcgm_passes(job.stdout), "no limit is missed"
    assert len(rows) == 14 and any(row[5] != row[9] for row in rows)
    assert job.stdout.count("#  Rank ") == 2
    assert lint_findings(job, tmp_path / "table") == 0
    (folder,) = (path for path in kept.iterdir() if not path.is_symlink())
    assert (folder / "results.h5").is_file() and str(folder) in job.stderr
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert all(row["out_of_place"] and row["in_place"] for row in results) and len(results) == 14


def test_the_exit_code_is_that_of_a_limit_that_is_missed(mpirun: MpiLauncher) -> None:
    job = mpirun.run(0, command=words(
        mpirun, "broadcast_perf", "-g", "1", "-b", "1K", "-e", "1K"),
        env={"NCCL_TESTS_MIN_BW": "1000"}).check(7)
    assert not dcgm_passes(job.stdout)


def test_an_option_that_is_refused_is_one_line_of_all_ranks(mpirun: MpiLauncher) -> None:
    job = mpirun.run(2, command=words(mpirun, "all_reduce_perf", "--nosuch")).check(255)
    assert job.stderr.count("nosuch") == 1 and "Traceback" not in job.stderr


def test_a_wrong_result_is_no_success(mpirun: MpiLauncher) -> None:
    job = mpirun.run(1, command=(
        mpirun.program("python"), "-c", FAULTY, "-b", "1K", "-e", "4K", "-f", "2")).check(7)
    assert not dcgm_passes(job.stdout)
    assert [line.split()[0] for line in job.stdout.splitlines() if line.startswith("  ")] == [
        "2048", "4096"]
    assert "# Out of bounds values : 1 FAILED" in job.stdout


def test_a_single_rank_has_rows(mpirun: MpiLauncher, tmp_path: Path) -> None:
    job = mpirun.run(0, command=words(
        mpirun, "all_reduce_perf", "-g", "1", "-b", "1K", "-e", "1K")).check()
    assert [row[7] for row in cloudai(job.stdout)] == ["0.00"] and dcgm_passes(job.stdout)
    assert superbench(job.stdout) and job.stderr == "" and job.folder is None
    assert lint_findings(job, tmp_path / "table") == 0
