"""``python -m hpcbench``: the one place that turns an error into a line and an exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from hpcbench.import_path import leave_out_current_folder

leave_out_current_folder()  # first: what is imported below must be the installed libraries

# ruff: noqa: E402
from hpcbench.errors import ExitCode, HpcbenchError
from hpcbench.launch.launcher import announced_rank, announced_size, by_torchrun
from hpcbench.registry import CommandSpec, offered
from hpcbench.texts import error_document, masked, print_traceback, say, say_all

if TYPE_CHECKING:
    from hpcbench.launch.template_process import AnyTemplate

_COMPLETION = frozenset({"--install-completion", "--show-completion"})
_FULL = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Run one command of the command line."""
    end_with(_command, is_job=_is_job(sys.argv[1:]))


def end_with(command: Callable[[], int], *, is_job: bool = False) -> NoReturn:
    """Run a program and end with its code; print one line for a known error, a traceback only for
    our own. ``is_job``: all ranks are to meet in MPI."""
    sys.stdout, sys.stderr = _outlasting(sys.stdout), _outlasting(sys.stderr)
    printed, stderr = io.StringIO(), sys.stderr
    if announced_rank(os.environ) > 0 and (is_job or not by_torchrun(os.environ)):
        sys.stderr = printed  # rank 0 reports for all; a shell may have kept torchrun's variables
    with rare_collection():
        code = _exit_code(command)
    if is_job and code:
        _meet_others(printed.getvalue(), code, stderr)
    reason = _lost_output()
    if reason and code == ExitCode.OK:
        say(f"hpcbench: standard output cannot be written: {reason}", sys.stderr)
        code = int(ExitCode.USAGE)
    gc.freeze()  # memory ends with the process: to traverse all of it takes up to 0.2 s
    sys.exit(code)


_MANY_OBJECTS = 50_000
"""About those of two figures."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect rarely while the block makes many objects: a tenth of a command's time."""
    usual = gc.get_threshold()
    gc.set_threshold(_MANY_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Outlet(io.FileIO):
    """A standard stream that outlasts its reader: what ``| head`` does not read is dropped."""

    def write(self, data: Any, /) -> int:
        """Write bytes; return how many were taken, all of them where nobody reads any more."""
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return memoryview(data).nbytes


def _outlasting(stream: TextIO) -> TextIO:
    """Return a standard stream that neither a reader who leaves nor a text can make fail.

    A terminal of ASCII gets other characters as escapes. The stream is None where the parent
    process closed it, and has no descriptor where a test holds it."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="backslashreplace")
    try:
        outlet = _Outlet(stream.fileno(), "w", closefd=False)
    except io.UnsupportedOperation:
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(outlet), stream.encoding, "backslashreplace",
        line_buffering=stream.line_buffering, write_through=stream.write_through)


_JOBS = ("run", "suite", "profile")
_ALONE = frozenset({"--dry-run", "--help"})


def _is_job(words: Sequence[str]) -> bool:
    """Return whether the ranks meet in MPI; whoever mistyped the command meant to."""
    if _ALONE.intersection(words):
        return False
    if not words or words[0] in _JOBS or words[0] not in _commands():
        return True
    offer = _offer(words)
    return offer is not None and offer.is_job


def _offer(words: Sequence[str]) -> CommandSpec | None:
    """Return what a part or package says of a command, None of ours."""
    return offered(CommandSpec).get(words[0]) if words else None


def _commands() -> Collection[str]:
    from hpcbench.cli import COMMANDS

    return COMMANDS


def _early(words: Sequence[str]) -> AbstractContextManager[AnyTemplate | None]:
    """Give the template of a run, which imports torch while all else is imported here; an inline
    worker needs none."""
    if words[:1] != ["run"] or _ALONE.intersection(words) or "--inline" in words:
        return nullcontext()
    from hpcbench.launch.template_process import early_template

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run can take it as a request
    return early_template(os.environ)


def _meet_others(refusal: str, code: int, stderr: TextIO) -> None:
    """Tell the other ranks of an error before MPI: they would wait for this one."""
    announced = announced_size(os.environ)
    if (announced is None or announced[0] == 1 or by_torchrun(os.environ)  # it ends them
            or "mpi4py" in sys.modules):  # the error came later
        return
    from hpcbench.launch.session import meet_refused

    sys.stderr = stderr
    offer = _offer(sys.argv[1:])
    meet_refused(os.environ, refusal.strip(), code, posts=offer is not None and offer.posts)


def _command() -> int:
    arguments = _with_resumed_folder(sys.argv[1:])
    # a shell completes programs, not modules: whoever asks as python -m means the program, too
    name = "hpcbench" if _COMPLETION.intersection(arguments) else None
    with _early(arguments) as early:
        from hpcbench.cli import app

        app(args=arguments, prog_name=name, obj=early)
    return int(ExitCode.OK)


def _exit_code(command: Callable[[], int]) -> int:
    try:
        return command()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ExitCode.OK)
    except HpcbenchError as error:
        problem = masked(str(error), os.environ)
        say_all(f"hpcbench: {problem}", sys.stderr)
        _refuse_in_json(error, problem, int(error.exit_code))
        return int(error.exit_code)
    except OSError as error:
        if error.errno not in (*_FULL, errno.ENAMETOOLONG):
            return _internal_error(error)
        what = "cannot be written" if error.errno in _FULL else f"{str(error.filename)[:57]}..."
        say(f"hpcbench: {what}: {error.strerror}", sys.stderr)
        return int(ExitCode.USAGE)
    except Exception as error:
        return _internal_error(error)


def _refuse_in_json(error: Exception, problem: str, code: int) -> None:
    """Print the document of an error where one was asked for; rank 0 does for all."""
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    if "--json" in own and announced_rank(os.environ) == 0:
        say_all(error_document(problem, code, type(error).__name__))


def _with_resumed_folder(arguments: list[str]) -> list[str]:
    """Return the arguments with ``latest`` behind a --resume without folder, which typer lacks.

    Arguments behind ``--`` are another program's."""
    own = arguments[:arguments.index("--")] if "--" in arguments else arguments
    filled = []
    for argument, following in zip(own, [*own, "-"][1:], strict=True):
        alone = argument == "--resume" and following.startswith("-")
        filled += ["--resume", "latest"] if alone else [argument]
    return filled + arguments[len(own):]


def _internal_error(error: Exception) -> int:
    print_traceback(os.environ)
    say("hpcbench: internal error, please report the lines above", sys.stderr)
    _refuse_in_json(error, "internal error", int(ExitCode.INTERNAL))
    return int(ExitCode.INTERNAL)


def _lost_output() -> str | None:
    """Return why standard output cannot be written, or None; what is left of it is discarded.

    Python would try again at its end, and end with 120 instead of our exit code."""
    if sys.stdout is None:  # closed by whoever started us
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error.strerror
    return None


if __name__ == "__main__":
    main()
