"""Jobs on machines whose texts are not UTF-8, nor printable: nothing is lost, nothing is obeyed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher import EVERY_MPI_IF_ALL, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

BAD = os.fsdecode(b"f\xfcr\x1b[31m")
CAFE = os.fsdecode(b"caf\xe9")
MACHINE = {"SLURM_JOB_NAME": BAD, "LD_LIBRARY_PATH": f"/x/{BAD}", "HOME": f"/tmp/{BAD}",
           "USER": BAD, "NCCL_NOTE": BAD, "A_TOKEN": os.fsdecode(b"s3cr3t-\xfc-Value")}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
            "PYTHONIOENCODING": "ascii:strict"}


def both(**storage: str) -> dict[str, Any]:
    """Return a sweep with a collective and with files, of every access if none is named."""
    files = {"kind": "hardware", "test": "storage", "size": "64KiB", "iterations": 3, **storage}
    return sweep("8") | {"benchmarks": [*sweep("8")["benchmarks"], files]}


SEVERAL = """
import sys
from hpcbench.__main__ import main
words = sys.argv[1:]
while words:
    end = words.index("then")
    sys.argv, words = ["hpcbench", *words[:end]], words[end + 1:]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{sys.argv} ended with {ended.code}")
"""
"""Runs one command after the other, so that what all of them import is imported once."""
NAMED = ("unshare", "--uts", sys.executable, "-c", "import os, socket, sys;"
         "socket.sethostname(b'h\\xfc\\x1bx'); os.execvp(sys.argv[1], sys.argv[1:])")
"""What stands before mpirun on a host with a name of any bytes."""


def commands(*every: Sequence[str], cwd: Path, **variables: str) -> str:
    """Run commands and return what they printed, in which no terminal sequence may be."""
    words = [word for one in every for word in (*one, "then")]
    done = subprocess.run([sys.executable, "-c", SEVERAL, *words], cwd=cwd, timeout=200,
                          env={**os.environ, **variables}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert b"\x1b" not in done.stdout + done.stderr
    return done.stdout.decode()


def reading(folder: str) -> Sequence[Sequence[str]]:
    """Return every command that reads a run."""
    return (("show", folder), ("show", folder, "--json"), ("report", folder, "--force"),
            ("report", folder, "-o", f"{CAFE}.md"), ("plot", folder), ("advise", folder),
            ("compare", folder, folder), ("reduce", folder))


@EVERY_MPI_IF_ALL
def test_variables_of_any_bytes(mpirun: MpiLauncher) -> None:
    """Those of the host, too, where one can be named: root can, and MPICH takes any."""
    is_named = os.geteuid() == 0 and mpirun.mpi == "mpich"
    config = both(access="write_one_file")
    job = mpirun.run(2, config=config, env=MACHINE, before=NAMED if is_named else ()).check()
    assert set(read(job.folder).status().values()) == {"ok"}
    assert "\x1b" not in job.stdout + job.stderr and (r"h\xfc\x1bx" in job.stdout) == is_named
    recorded = json.dumps(json.loads((job.folder / "summary.json").read_bytes()))
    assert "s3cr3t" not in recorded
    mpirun.assert_no_orphans()


def test_folders_of_any_bytes_in_any_locale(mpirun: MpiLauncher) -> None:
    """The current folder is one, and -o and the file of the sweep are one below it. One rank: what
    others are told in such texts, the variables show.
    """
    mpirun.folder = mpirun.folder / os.fsdecode(b"d\xe9\x1b[1m")
    words = (mpirun.program("python"), "-m", "hpcbench")
    job = mpirun.run(1, "-o", CAFE, config=both(), env=C_LOCALE,
                     command=(*words, "run", "config.json")).check()
    home = mpirun.jobs[0].home
    folder = home / CAFE / "latest"
    assert set(read(folder).status().values()) == {"ok"}
    assert r"caf\xe9" in job.stdout and "\x1b" not in job.stdout + job.stderr
    assert json.loads((folder / "config.json").read_bytes())["output"]["folder"] == r"caf\xe9"
    commands(("show", f"{CAFE}/latest"), cwd=home, **C_LOCALE)
    (home / f"{CAFE}.json").write_bytes((home / "config.json").read_bytes())
    told = commands(
        *reading(f"{CAFE}/latest"), ("plan", f"{CAFE}.json"), ("list",),
        ("run", "--dry-run", f"{CAFE}.json", "-o", CAFE), ("validate", "-o", CAFE),
        cwd=home, ODD=BAD)
    assert "variable ODD" in told
    mpirun.assert_no_orphans()
