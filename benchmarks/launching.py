"""How the benchmarks start ranks: under the mpirun of this environment, and with a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
MPIRUN = Path(sys.executable).parent / "mpirun"
NOT_MEASURED = 2
"""The exit code of a benchmark that could not measure; 1 says that a goal is missed."""


def fail(why: str) -> NoReturn:
    """End this process, which could not measure, with the reason."""
    print(why, file=sys.stderr)
    sys.exit(NOT_MEASURED)


def mpirun(
    ranks: int, program: Sequence[str | Path], *, options: Sequence[str] = (),
    before: Sequence[str] = (), env: Mapping[str, str] | None = None,
    accepted: Collection[int] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Run a program of Python as so many ranks: its path or flags, and its arguments.

    ``options`` are mpirun's, ``before`` stands in front of it, ``env`` is added to the environment.
    Ends this process with all that was printed if the exit code is not ``accepted``.
    """
    command = [*before, str(MPIRUN), "-np", str(ranks), *options, sys.executable,
               *map(str, program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, **(env or {})})
    if done.returncode not in accepted:
        fail(f"{done.stdout}{done.stderr}exit code {done.returncode}: {' '.join(command)}")
    return done


def run_sweep(ranks: int, config: Mapping[str, Any], folder: Path, **how: Any) -> Path:
    """Run a sweep as `mpirun` runs a program; return the folder of its results in ``folder``."""
    path = folder.resolve() / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    mpirun(ranks, ["-m", "hpcbench", "run", path, "-o", folder.resolve()], **how)
    return folder / "latest"
