"""The literal command, with nothing set for it, as this user and as an ordinary one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import EVERY_MPI, ROOT, MpiLauncher
from mpi.reading import ONCE

pytestmark = pytest.mark.mpi

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
MAY_READ = ("--securebits=+no_setuid_fixup",  # else access(2), by which prterun looks, forgets it
            "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
LITERAL = ("python", "-m", "hpcbench", "run")
SMALL = {"measure": {**ONCE, "warmup": 1, "iterations": 3}, "benchmarks": [{
    "kind": "collective", "backend": "gloo", "collective": "all_reduce", "size": "64KiB"}]}


def as_ordinary_user(venv: Path) -> tuple[str, ...]:
    """Return the words that run a command as nobody; none if this user is an ordinary one.

    A checkout or a Python below /root cannot be read by others. There nobody gets the one
    capability that lets it read; what MPI looks at is the user id.
    """
    if os.geteuid() != 0:
        return ()
    needed = [venv / "bin" / "python", Path(os.__file__), ROOT / "hpcbench" / "run.py"]
    tests = [subprocess.run([*AS_NOBODY, "test", "-r", path], timeout=10) for path in needed]
    return AS_NOBODY + (MAY_READ if any(done.returncode for done in tests) else ())


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that others can get to, which tmp_path is not."""
    folder = Path(tempfile.mkdtemp(prefix="hpcbench-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@EVERY_MPI
def test_as_an_ordinary_user(mpirun: MpiLauncher, public_folder: Path) -> None:
    mpirun.folder = public_folder
    before = as_ordinary_user(mpirun.venv)
    owner = NOBODY if before else None
    done = mpirun.run(2, command=LITERAL, config=SMALL, before=before, owner=owner).check()
    assert done.folder is not None and (done.folder / "results.h5").is_file()
    assert not before or (done.folder / "results.h5").stat().st_uid == NOBODY
    mpirun.assert_no_orphans()
