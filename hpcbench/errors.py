"""The exceptions that are raised on purpose, and the exit code that each ends a command with."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What every command returns; see docs/method.md."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    INCOMPLETE = 3
    INTERNAL = 4


class HpcbenchError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = ExitCode.INTERNAL


class UsageError(HpcbenchError):
    """Something the user can fix; the message says where, what, and how."""

    exit_code = ExitCode.USAGE


class ConfigError(UsageError):
    """A configuration that cannot be accepted; lists every problem found."""


class LaunchError(UsageError):
    """A launch that MPI or the machine does not support as started."""


class FileError(UsageError):
    """A file or folder that cannot be read or written as asked."""


class TraceError(FileError):
    """A trace, journal or results file that is damaged, foreign or too new."""


class RankLostError(HpcbenchError):
    """Another rank's supervisor does not answer; what was acknowledged is on disk."""

    exit_code = ExitCode.INCOMPLETE


class CaseError(HpcbenchError):
    """One case cannot go on on this rank; ends the case, never the command."""


class PluginError(CaseError):
    """A plug-in that cannot be used; costs its cases only. The message says what is wrong."""
