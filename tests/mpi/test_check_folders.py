"""`hpcbench check`, and what is compared, on the folders of real jobs: as they are, and damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from hpcbench.answers.baseline import check_baseline
from hpcbench.answers.learned_limits import write_limits
from hpcbench.cli import app
from hpcbench.errors import UsageError
from hpcbench.reduce.reduce import reduce_folder
from launcher import Finished, launcher_for
from mpi.reading import sweep

pytestmark = pytest.mark.mpi

LAUNCHES, SHARE = 2, 0.2
"""So many launches teach a limit that this share of launches holds."""
OUTCOMES: Mapping[str, tuple[int, int, int]] = {
    "good": (0, 0, 0), "slow": (10, 1, 2), "wrong": (11, 1, 2), "missing": (12, 0, 3),
    "crashed": (13, 1, 2), "cannot_tell": (14, 0, 3)}
"""Outcome -> exit codes of styles ci, slurm, nagios (docs/compare.md)."""
ANY_TIME = [{"metric": "median_s", "max": 1e6}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("check")


@pytest.fixture(scope="module")
def clean(home: Path) -> Path:
    return several_launches(home / "clean")


@pytest.fixture(scope="module")
def before(home: Path) -> Path:
    """An earlier run: one run is no baseline of its own."""
    return several_launches(home / "before")


def several_launches(work: Path) -> Path:
    """Run a job of several launches; those of backend mpi repeat in one process."""
    config = sweep("8", block={"backend": ["gloo", "mpi"]}, measure={"launches": LAUNCHES})
    return folder_of(launcher_for("mpich", work).run(2, config=config).check())


@pytest.fixture(scope="module")
def again(clean: Path, home: Path) -> Path:
    """The same on gloo alone."""
    return without(clean, home / "again", lambda case: case["backend"] == "mpi")


@pytest.fixture(scope="module")
def faulty(home: Path) -> Path:
    """A job with a wrong, a killed and a stopped case, and one that is well."""
    config = sweep("8", "16", "32", "64", launch={"timeout_s": 5}, fault=[
        {"case": "* 8B *", "rank": 1, "kind": "wrong"},
        {"case": "* 16B *", "rank": 1, "kind": "kill"},
        {"case": "* 32B *", "rank": 1, "kind": "stop"}])
    return folder_of(launcher_for("mpich", home / "faulty").run(2, config=config).check(1))


def folder_of(job: Finished) -> Path:
    assert job.folder is not None, job
    return job.folder


def limits_file(folder: Path, limits: list[dict[str, object]]) -> Path:
    path = folder / "limits.yaml"
    path.write_text(yaml.safe_dump({"limits": limits}), encoding="utf-8")
    return path


def codes(results: Path, limits: Path) -> tuple[int, ...]:
    """Return what the command ends with in each style."""
    runner = CliRunner()
    return tuple(runner.invoke(app, ["check", str(results), "--limits", str(limits),
                                     "--exit-style", style]).exit_code
                 for style in ("ci", "slurm", "nagios"))


def removed(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3000] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(("rank", "damage"), [(0, removed), (1, truncated), (0, flipped)])
def test_a_lost_trace_is_missing_and_drains_no_node(
    clean: Path, before: Path, tmp_path: Path, rank: int, damage: Callable[[Path], None],
) -> None:
    folder = Path(shutil.copytree(clean, tmp_path / "damaged"))
    damage(folder / "traces" / f"rank{rank:05d}.h5")
    reduce_folder(folder)
    assert codes(folder, limits_file(tmp_path, ANY_TIME)) == OUTCOMES["missing"]
    assert check_baseline([folder], [before], 0.03).outcome == "missing"
    with pytest.raises(UsageError, match="not clean"):
        write_limits([folder], tmp_path / "learned.yaml", SHARE)


def test_a_clean_run_is_good_and_a_limit_of_nothing_is_missing(clean: Path, tmp_path: Path) -> None:
    assert codes(clean, limits_file(tmp_path, ANY_TIME)) == OUTCOMES["good"]
    too_strict = [{"metric": "median_s", "max": 1e-12}]
    assert codes(clean, limits_file(tmp_path, too_strict)) == OUTCOMES["slow"]
    nothing = [{"metric": "median_s", "select": {"backend": "nccl"}, "max": 1}]
    assert codes(clean, limits_file(tmp_path, nothing)) == OUTCOMES["missing"]


@pytest.mark.parametrize(("sizes", "outcome"), [
    ((), "crashed"), ((16, 32), "wrong"), ((8, 32), "crashed"), ((8, 16), "crashed"),
    ((8, 16, 32), "cannot_tell")])
def test_what_is_wrong_outside_every_limit_counts(
    faulty: Path, tmp_path: Path, sizes: tuple[int, ...], outcome: str,
) -> None:
    """Of a folder that lacks the cases of ``sizes``; the limit selects the sound one alone."""
    folder = without(faulty, tmp_path / "part",
                     lambda case: case["workload"]["size_bytes"] in sizes)
    sound = [{"metric": "median_s", "select": {"size_bytes": 64}, "max": 1e6}]
    assert codes(folder, limits_file(tmp_path, sound)) == OUTCOMES[outcome]


def without(run: Path, folder: Path, out: Callable[[dict[str, Any]], bool]) -> Path:
    """Return a copy of a run whose plan never had the cases that are ``out``."""
    shutil.copytree(run, folder)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["cases"] = [case for case in plan["cases"] if not out(case)]
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    reduce_folder(folder, allow_mixed=True)
    return folder


def test_a_run_holds_the_limits_that_it_taught(again: Path, tmp_path: Path) -> None:
    learned, _ = write_limits([again], tmp_path / "learned.yaml", SHARE)
    assert codes(again, learned) == OUTCOMES["good"]
    halved = yaml.safe_load(learned.read_text(encoding="utf-8"))
    for limit in halved["limits"]:
        limit["max"] /= 1000
    assert codes(again, limits_file(tmp_path, halved["limits"])) == OUTCOMES["slow"]


def test_launches_in_one_process_count_as_one(
    clean: Path, before: Path, tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="there are 1 "):
        write_limits([clean], tmp_path / "learned.yaml", SHARE)
    texts = [reason.text for reason in check_baseline([clean], [before], 0.03).reasons
             if " mpi " in reason.what]
    assert texts and all("count as one" in text for text in texts)
