"""Disks that fill up, cannot be written or vanish: one clear error, and all before it readable.

A small tmpfs in a mount namespace of its own (``unshare -m``) is the disk; before it goes with the
namespace, what is on it is copied beside it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.journal import Frame, Journal, Kind, journal_path, scan
from hpcbench.trace.sealed import open_trace, trace_path
from hpcbench.units import parse_bytes
from launcher import EVERY_MPI, EVERY_MPI_IF_ALL, Finished, MpiLauncher, launcher_for
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

SIZES = [str(16 << number) for number in range(8)]
MANY = {"warmup": 1, "iterations": 300, "mode": "barrier_start"}
ENOUGH = MANY | {"iterations": 100}
"""For a trace that is larger than the files beside it differ from job to job."""
ON_A_SMALL_DISK = """
mkdir out && mount -t tmpfs -o "$1" tmpfs out || exit 99
shift
"$@"
code=$?
cp -a out saved
exit $code
"""
REDUCE_WITH_LITTLE_ROOM = """
whole=$1 python=$2 code=$3
shift 3
for room in "$@"; do
    mkdir "$room" && mount -t tmpfs -o size=4m tmpfs "$room" || exit 99
    cp -a "$whole" "$room/run" && rm -rf "$room"/run/summary.*
    dd if=/dev/zero of="$room/filler" bs=4k 2> /dev/null
    truncate -s -"$room" "$room/filler"
done
"$python" -c "$code" "$@"
for room in "$@"; do cp -a "$room/run" "saved$room"; done
"""
REDUCE_EACH = """
import sys
from hpcbench.__main__ import main
for room in sys.argv[1:]:
    sys.argv = ["hpcbench", "reduce", f"{room}/run"]
    try:
        main()
    except SystemExit as ended:
        print(f"ended with {ended.code}", file=sys.stderr, flush=True)
"""
"""Runs one command after the other, so that what all of them import is imported once."""


@functools.cache
def _cannot_mount() -> str:
    """Return why no file system can be mounted here, "" if it can."""
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                          capture_output=True, text=True, check=False)
    return done.stderr.strip()


@pytest.fixture(autouse=True)
def mounts(request: pytest.FixtureRequest) -> None:
    """Skip a test marked with ``mounts`` where nothing can be mounted."""
    if request.node.get_closest_marker("mounts") and _cannot_mount():
        pytest.skip(f"cannot mount a small disk: {_cannot_mount()}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of one rank that had room enough."""
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("whole"))
    job = launcher.run(1, config=sweep(*SIZES, measure=ENOUGH)).check()
    assert job.folder is not None
    return job.folder


def _run_on(
    mpirun: MpiLauncher, options: str, ranks: int = 1, **config: object,
) -> tuple[Finished, Path]:
    """Run a sweep with results on a tmpfs; return the job and a copy of what it wrote."""
    before = ["unshare", "-m", "sh", "-c", ON_A_SMALL_DISK, "sh", options]
    done = mpirun.run(ranks, config=sweep(*SIZES, **config), before=before)
    assert "Traceback" not in done.stderr, str(done)
    return done, mpirun.jobs[-1].home / "saved"


def _bytes_before_sealing(folder: Path, scratch: Path) -> int:
    """Return what the files of a job like this one take when its journals are complete."""
    files = [folder / "config.json", folder / "plan.json"]
    trace = open_trace(trace_path(folder / "traces", 0))
    files.append(scratch / "0.journal")
    with Journal.create(files[-1], trace.header, trace.plan) as journal:
        journal.append(*trace.records())
        for note in trace.notes:
            journal.note(note.kind, note.data)
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


def _acknowledged(done: Finished) -> list[int]:
    return [parse_bytes(size) for size in re.findall(r"\d\] ok +all_reduce (\S+)", done.stdout)]


def _reduced(folder: Path) -> Results:
    return reduce_folder(folder.resolve())


def _ok_sizes(results: Results) -> set[int]:
    return {item.case.workload.size_bytes for item in results.cases if item.status == "ok"}


@EVERY_MPI_IF_ALL
@pytest.mark.mounts
def test_a_disk_that_fills_up_while_cases_run(mpirun: MpiLauncher) -> None:
    """How such a job ends under Open MPI, the test of a removed folder shows, too."""
    done, saved = _run_on(mpirun, "size=80k", ranks=2, measure=MANY)
    done.check(2)
    assert re.search(r"rank \d: .*\.journal: cannot be written: No space left on device; \d+ "
                     r"records \(\d+ bytes\) before it are safe", done.stderr)
    assert "hpcbench reduce" in done.stderr
    mpirun.assert_no_orphans()
    acknowledged = _acknowledged(done)
    assert acknowledged
    assert set(acknowledged) <= _ok_sizes(_reduced(saved / "latest"))
    words = [mpirun.program("python"), "-m", "hpcbench", "run", "--resume",
             str((saved / "latest").resolve())]
    again = mpirun.run(2, command=words).check()  # with room enough it does what is left
    assert sorted([*acknowledged, *_acknowledged(again)]) == sorted(map(int, SIZES))


@pytest.mark.mounts
def test_a_disk_that_fills_up_while_traces_are_sealed(
    mpirun: MpiLauncher, whole: Path, tmp_path: Path,
) -> None:
    trace_bytes = trace_path(whole / "traces", 0).stat().st_size
    room = _bytes_before_sealing(whole, tmp_path) + trace_bytes // 2
    done, saved = _run_on(mpirun, f"size={room}", measure=ENOUGH)
    done.check(2)
    assert "sealing the trace failed on" in done.stderr
    assert re.search(r"\.h5: cannot be written: No space left on device", done.stderr)
    assert re.search(r"hpcbench reduce /.*/out/test-", done.stderr)
    assert not list((saved / "latest" / "traces").glob("*.part"))
    assert _acknowledged(done) == [int(size) for size in SIZES]
    assert _ok_sizes(_reduced(saved / "latest")) == set(_acknowledged(done))


@pytest.mark.mounts
def test_a_disk_too_small_for_anything(mpirun: MpiLauncher) -> None:
    done, _ = _run_on(mpirun, "size=4k")
    assert "No space left on device; choose another folder with -o DIR" in done.check(2).stderr


@pytest.mark.mounts
def test_a_disk_that_fills_up_while_results_are_written(
    mpirun: MpiLauncher, whole: Path, tmp_path: Path,
) -> None:
    expected = _ok_sizes(read(whole).results)
    rooms = ["0", "20k", "44k", "64k", "100k", "400k", "16m"]
    words = ["unshare", "-m", "sh", "-c", REDUCE_WITH_LITTLE_ROOM, "sh", str(whole),
             mpirun.program("python"), REDUCE_EACH, *rooms]
    done = subprocess.run(words, cwd=tmp_path, env=mpirun.environment(tmp_path, {}),
                          capture_output=True, text=True, timeout=100, check=True)
    assert "Traceback" not in done.stderr
    ended = re.findall(r"((?:hpcbench: .*\n)*)ended with (\d)\n", done.stderr)
    assert "".join(f"{told}ended with {code}\n" for told, code in ended) == done.stderr
    for room, (told, code) in zip(rooms, ended, strict=True):
        saved = tmp_path / f"saved{room}"
        assert not [path.name for path in saved.rglob("*") if ".part" in path.name]
        with open_results(saved) as file:  # the former one or the new one, but whole
            assert _ok_sizes(file.results) == expected
        assert code in "02"
        if code == "2":
            assert re.fullmatch(rf"hpcbench: {room}/run/.*: No space left on device\n", told)
    assert {code for _, code in ended} == {"0", "2"}


@pytest.mark.mounts
def test_a_read_only_disk(mpirun: MpiLauncher) -> None:
    done, saved = _run_on(mpirun, "ro")
    assert "cannot be made: Read-only file system; choose another" in done.check(2).stderr
    assert list(saved.iterdir()) == []


@EVERY_MPI
def test_a_folder_that_is_removed_while_cases_run(mpirun: MpiLauncher) -> None:
    slow = {"case": "* 32B *", "rank": 0, "kind": "slow", "iteration": 0, "seconds": 2}
    config = sweep(*SIZES[:4], fault=[slow])
    with mpirun.start(1, config=config) as job:
        job.wait_for("[1/4]")
        assert job.folder is not None
        shutil.rmtree(job.folder)
        done = job.wait(60).check(2)
        mpirun.assert_no_orphans()
    assert re.search(r"rank \d: .*\.journal: was removed while the run was on", done.stderr)
    assert "[4/4]" not in done.stdout  # no case is called recorded that is nowhere
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["cut", "moved"])
def test_a_journal_that_another_program_changes_ends_the_run(
    mpirun: MpiLauncher, how: str,
) -> None:
    slow = {"case": "* 64B *", "rank": 0, "kind": "slow", "iteration": 0, "seconds": 2}
    with mpirun.start(1, config=sweep(*SIZES[:4], fault=[slow])) as job:
        job.wait_for("[2/4]")
        assert job.folder is not None
        folder = job.folder
        if how == "cut":
            journal = journal_path(folder / "traces", 0)
            last = [item for item in scan(journal.read_bytes())
                    if isinstance(item, Frame) and item.kind == Kind.RECORD][-1]
            os.truncate(journal, last.offset + 40)
        else:
            folder = folder.rename(folder.with_name("elsewhere"))
        done = job.wait(60).check(2)
    assert "[4/4]" not in done.stdout and "Traceback" not in done.stderr
    told = re.search(r"hpcbench reduce (\S+)", done.stderr)
    assert told is not None and told[1] == str(folder), done.stderr
    assert ("1 of 2 records can be read back" in done.stderr) == (how == "cut")
    results = _reduced(Path(told[1]))
    assert [item.status == "ok" for item in results.cases][:2] == [True, how != "cut"]


def test_a_log_on_a_full_disk_is_one_clear_error(mpirun: MpiLauncher, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(sweep("8")))
    with open("/dev/full", "w") as log:  # noqa: PTH123  (mpirun would write it, and end the job)
        done = subprocess.run(
            [mpirun.program("python"), "-m", "hpcbench", "run"], cwd=tmp_path, stdout=log,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            env=mpirun.environment(tmp_path, {}))
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_used_output_folder_keeps_all_that_is_in_it(
    mpirun: MpiLauncher, whole: Path, tmp_path: Path,
) -> None:
    config = sweep("8")
    shutil.copytree(whole.parent, tmp_path / "out", symlinks=True)
    first = tmp_path / "out" / whole.name
    before = _contents(first)
    for output in (first.parent, first):
        again = mpirun.run(1, "-o", str(output), config=config).check()
        assert "results in" in again.stdout
        assert {path: data for path, data in _contents(first).items() if path in before} == before
    assert (first.parent / "latest").resolve() != first
    assert read(first / "latest").results.cases[0].status == "ok"


def test_an_output_folder_that_is_a_file(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """One of two ranks tells it, and nothing else."""
    file = tmp_path / "file"
    file.write_text("mine")
    done = mpirun.run(2, "-o", str(file), config=sweep("8")).check(2)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hpcbench:")]
    assert "cannot be made: Not a directory; choose another folder" in line
    assert "Traceback" not in done.stderr
    assert file.read_text() == "mine"


def _contents(folder: Path) -> dict[str, bytes]:
    found: Sequence[Path] = [path for path in folder.rglob("*") if path.is_file()]
    return {os.path.relpath(path, folder): path.read_bytes() for path in found}
