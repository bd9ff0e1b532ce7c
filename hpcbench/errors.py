"""The exception tree, and the exit code each branch ends a command with.

HpcbenchError                 4  internal error
  UsageError                  2  the user can fix it: bad usage, config, launch or file
    ConfigError               2  config.json, YAML or a command-line override
    LaunchError               2  the way the job was started
    FileError                 2  a folder or file that cannot be used as requested
      TraceError              2  a trace, journal or results file that is not what it should be
  RankLostError               3  another rank's supervisor does not answer; the job is ended
  MeasureError                -  a function under hpcbench.measure raised on some rank
  CaseError                   -  one case cannot go on; ends the case, never the command
    PluginError               -  a plug-in cannot be imported; costs its cases only"""

from __future__ import annotations

import os
import shlex
import string
from enum import IntEnum

from hpcbench.texts import as_field

_PLAIN_BYTES = frozenset(string.ascii_letters + string.digits + "/_.,:=+-@% ")
NOT_AS_WRITTEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError,
                  RecursionError)
"""What reading a value raises that is not as its program writes it."""


def command_line(*arguments: object) -> str:
    """Return a command of hpcbench as a shell takes it, whatever is in its words, on one line."""
    return shell_line("hpcbench", *arguments)


def job_command_line(n_ranks: int | str, *arguments: object) -> str:
    """Return a command of hpcbench that is started on so many ranks."""
    return shell_line("mpirun", "-np", n_ranks, "python", "-m", "hpcbench", *arguments)


def shell_line(*words: object) -> str:
    """Return words as a shell takes them, on one line: hidden characters as bash writes bytes."""
    return " ".join(map(_shell_word, words))


def _shell_word(word: object) -> str:
    text = str(word)
    if as_field(text) == text:
        return shlex.quote(text)
    return "$'" + "".join(chr(byte) if chr(byte) in _PLAIN_BYTES else f"\\{byte:03o}"
                          for byte in os.fsencode(text)) + "'"


def how_to_install(extras: str) -> str:
    """Return the command that installs these extras; an index has another package of this name."""
    return f"pip install '.[{extras}]' in a checkout of hpcbench"


class ExitCode(IntEnum):
    """The exit codes of all commands; see docs/method.md."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    INCOMPLETE = 3
    INTERNAL = 4


class HpcbenchError(Exception):
    """Base of every error this package raises on purpose.

    ``exit_code``: an `ExitCode`, or that of the program that a command stands in for. ``to_see``:
    what is on disk of a measurement that it ended, and how to see it; else ""."""

    exit_code: int = ExitCode.INTERNAL
    to_see = ""


class UsageError(HpcbenchError):
    """Something the user can fix; the message gives place, problem and remedy.

    It takes the lines of its message. None of them is divided by what it names from outside."""

    exit_code = ExitCode.USAGE

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)

    def __str__(self) -> str:
        return "\n".join(map(as_field, self.args))


class ConfigError(UsageError):
    """A configuration that cannot be accepted; lists every problem found."""


class LaunchError(UsageError):
    """A launch that MPI or the machine does not support as started."""


class FileError(UsageError):
    """A file or folder that cannot be read or written as requested."""


class TraceError(FileError):
    """A trace, journal or results file that is damaged, foreign or too new."""


class RankLostError(HpcbenchError):
    """Another rank's supervisor does not answer; what was acknowledged is on disk."""

    exit_code = ExitCode.INCOMPLETE


class MeasureError(HpcbenchError):
    """A function measured in a user's program raised on ``rank``; raised on all ranks."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank}: {text}")
        self.rank = rank


class CaseError(HpcbenchError):
    """One case cannot go on on this rank; ends the case, never the command."""


class Skip(CaseError):
    """The case cannot run here, with what it is: raised by a benchmarked function before its call
    on all ranks, it makes the case a skip. The message is the reason."""


class PluginError(CaseError):
    """A plug-in that cannot be used; costs its cases only. The message gives the problem."""
