"""What a run can do without costs a note: the run is complete, and ends with the same exit code.

A file system without symbolic links that syncs no folders is made of this one by a library in
front of libc, as a share or FUSE would answer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bad_input_process import hpcbench
from launcher import EVERY_MPI_IF_ALL, MpiLauncher
from mpi.reading import read, sweep
from mpi.test_ordinary_user import NOBODY, as_ordinary_user

pytestmark = pytest.mark.mpi

SHARE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void tell(int file) {
    char at[64], name[4096];
    snprintf(at, sizeof at, "/proc/self/fd/%d", file);
    ssize_t length = readlink(at, name, sizeof name - 1);
    int log = open(getenv("SYNCED"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (length > 0 && log >= 0) { name[length] = '\n'; length = write(log, name, length + 1); }
    if (log >= 0) close(log);
}

static int synced(int file, const char *call) {
    struct stat about;
    if (fstat(file, &about) == 0 && S_ISDIR(about.st_mode)) { errno = EINVAL; return -1; }
    tell(file);
    return ((int (*)(int)) dlsym(RTLD_NEXT, call))(file);
}

int symlink(const char *to, const char *at) { errno = EPERM; return -1; }
int fsync(int file) { return synced(file, "fsync"); }
int fdatasync(int file) { return synced(file, "fdatasync"); }
"""
CASE = sweep("64", "128")
DRAWN = CASE | {"output": {"plots": True}}


@pytest.fixture
def share(tmp_path: Path) -> dict[str, str]:
    """Return the variables by which a job works on such a share; SYNCED lists the synced files."""
    source, library = tmp_path / "share.c", tmp_path / "share.so"
    source.write_text(SHARE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "SYNCED": str(tmp_path / "synced")}


def made(home: Path, parent: str) -> Path:
    """Return the one folder that a job made; nothing half-made may lie beside it."""
    (folder,) = (home / parent).iterdir()
    assert not [path for path in folder.rglob("*") if path.name.endswith(".part")]
    return folder


@EVERY_MPI_IF_ALL
def test_a_share_without_links_and_syncs_of_folders(
    mpirun: MpiLauncher, share: dict[str, str],
) -> None:
    job = mpirun.run(2, config=DRAWN, env=share).check()
    folder = made(mpirun.jobs[0].home, "out")
    assert set(read(folder).status().values()) == {"ok"}
    notes = [line for line in job.stdout.splitlines() if line.startswith("note:")]
    assert len(notes) == 2 and "latest" in job.prose and "does not sync folders" in job.prose
    assert {"report.html", "plots", "summary.json"} <= {path.name for path in folder.iterdir()}
    synced = Path(share["SYNCED"]).read_text().splitlines()
    for rank in range(2):  # header, and each case in each pass before it is acknowledged
        assert sum(line.endswith(f"/rank{rank:05d}.journal") for line in synced) >= 3
    mpirun.assert_no_orphans()


@pytest.fixture
def sticky() -> Iterator[Path]:
    """A folder like /tmp, in which another user's `latest` lies."""
    folder = Path(tempfile.mkdtemp(prefix="hpcbench-"))
    folder.chmod(0o755)
    (folder / "out").mkdir()
    (folder / "out" / "latest").symlink_to("of-somebody-else")
    (folder / "out").chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def test_a_sticky_folder_with_the_latest_of_another_user(
    mpirun: MpiLauncher, sticky: Path,
) -> None:
    before = as_ordinary_user(mpirun.venv)
    if os.geteuid() != 0:  # then all of it is this user's, and the link is replaced
        return
    mpirun.folder = sticky
    words = (mpirun.program("python"), "-m", "hpcbench", "run", "config.json")
    job = mpirun.run(1, "-o", str(sticky / "out"), config=CASE, before=before, owner=NOBODY,
                     command=words).check()
    (note,) = [line for line in job.stdout.splitlines() if line.startswith("note: ")]
    assert "latest" in note and "Operation not permitted" in job.prose
    assert str((sticky / "out" / "latest").readlink()) == "of-somebody-else"
    left = {path.name for path in (sticky / "out").iterdir()} - {"latest"}
    (name,) = left
    assert set(read(sticky / "out" / name).status().values()) == {"ok"}
    assert f"{sticky}/out/{name}" in job.stdout


def test_plots_and_report_that_cannot_be_drawn(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """The user's settings of matplotlib are no UTF-8, so that it cannot be imported."""
    (tmp_path / "matplotlibrc").write_bytes(b"font.family: \xfc\n")
    settings = {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    job = mpirun.run(1, config=DRAWN, env=settings).check()
    notes = [line for line in job.stderr.splitlines() if "note: no " in line]
    assert len(notes) == 2 and all("hpcbench reduce" in line for line in notes)
    assert job.folder is not None and "Traceback" not in job.stderr
    assert set(read(job.folder).status().values()) == {"ok"}
    assert (job.folder / "summary.json").is_file() and not (job.folder / "report.html").exists()
    (job.folder / "plots").mkdir(exist_ok=True)
    shutil.rmtree(job.folder / "plots")
    (job.folder / "plots").touch()
    done = hpcbench("reduce", str(job.folder))
    assert done.returncode == 0 and done.stderr.count("note: no ") == 1, done.stderr
    assert (job.folder / "report.html").is_file()
