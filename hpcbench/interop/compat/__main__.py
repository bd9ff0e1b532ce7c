"""``python -m hpcbench.compat FOLDER``: programs with nccl-tests' names, for those that start them.

They lie in a folder of their own: beside python they could hide nccl-tests' own."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from hpcbench.__main__ import end_with
from hpcbench.errors import ExitCode, FileError, UsageError
from hpcbench.import_path import ROOT
from hpcbench.interop.compat.options import PROGRAM_NAMES
from hpcbench.texts import path_of, say, say_all

_USAGE = """Usage: python -m hpcbench.compat FOLDER
Writes all_reduce_perf and the other programs of nccl-tests into a folder, and prints its path:
  export DCGM_NCCL_TESTS_BIN_PATH=$(python -m hpcbench.compat ~/hpcbench-nccl-tests)
Programs: {programs}; also as python -m hpcbench.compat.PROGRAM
"""
_MARK = "by hpcbench"


def main(words: Sequence[str]) -> int:
    """Write the programs; return the exit code. Raises UsageError, and FileError for a folder."""
    if words in (["-h"], ["--help"]):
        say_all(_USAGE.format(programs=", ".join(PROGRAM_NAMES)))
        return int(ExitCode.OK)
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError("python -m hpcbench.compat takes one folder, such as "
                         "~/hpcbench-nccl-tests")
    folder = path_of(words[0]).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for program in PROGRAM_NAMES:
            _write(folder / program, program)
    except OSError as error:
        raise FileError(f"{error.filename}: cannot be written: {error.strerror}") from None
    say(folder)
    return int(ExitCode.OK)


def _write(file: Path, program: str) -> None:
    """Write a program, over one of ours only."""
    if file.exists() and _MARK not in file.read_text(encoding="utf-8", errors="replace"):
        raise FileError(f"{file}: is there already, and not ours; give another folder")
    file.write_text(script(program), encoding="utf-8")
    file.chmod(0o755)


def script(program: str) -> str:
    """Return the program as a script of sh for this Python, and this hpcbench."""
    own = shlex.quote(ROOT)
    path = [] if sysconfig.get_path("purelib") == ROOT else [
        f"export PYTHONPATH={own}${{PYTHONPATH:+:$PYTHONPATH}}"]
    return "\n".join([
        "#!/bin/sh", f"# nccl-tests' {program} {_MARK}", *path,
        f'exec {shlex.quote(sys.executable)} -m hpcbench.compat.{program} "$@"', ""])


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
