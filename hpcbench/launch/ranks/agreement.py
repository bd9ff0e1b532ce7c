"""All ranks go on together, or all stop with the same message."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hpcbench.errors import ExitCode, FileError, HpcbenchError
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.masking import masked

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Value = TypeVar("Value")


class AgreedError(HpcbenchError):
    """An error that all ranks know of; rank 0 prints it, all end with the same code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = ExitCode(exit_code)


def on_root(comm: Communicator, work: Callable[[], Any], pause_s: float = 2e-3) -> Any:
    """Do ``work`` on rank 0 and return its (JSON) result everywhere, or raise everywhere.

    The others look every ``pause_s`` seconds whether rank 0 is done.
    """
    answer: dict[str, Any] = {}
    cause: Exception | None = None
    if comm.rank == 0:
        try:
            answer = {"value": work()}
        except (HpcbenchError, OSError) as error:
            answer, cause = _error_answer(error), error
    answer = comm.bcast(answer, pause_s)
    if "error" in answer:
        raise AgreedError(answer["error"], answer["exit_code"]) from cause
    return answer["value"]


def from_root(
    comm: Communicator, adapter: TypeAdapter[Value], work: Callable[[], Value],
) -> Value:
    """Do ``work`` on rank 0 and return its typed result everywhere, or raise everywhere."""
    return adapter.validate_python(
        on_root(comm, lambda: adapter.dump_python(work(), mode="json")))


def on_all(comm: Communicator, phase: str, work: Callable[[], Any]) -> list[Any]:
    """Do ``work`` on every rank and return all (JSON) results, or raise everywhere.

    The message names the phase and the ranks that failed.
    """
    cause: Exception | None = None
    try:
        mine: dict[str, Any] = {"value": work()}
    except (HpcbenchError, OSError) as error:
        mine, cause = _error_answer(error), error
    answers = comm.allgather(mine)
    failed = {rank: answer for rank, answer in enumerate(answers) if "error" in answer}
    if failed:
        lines = [f"rank {rank}: {answer['error']}" for rank, answer in failed.items()]
        shown = lines[:8] + ([f"and {len(lines) - 8} more ranks"] if len(lines) > 8 else [])
        worst = max(int(answer["exit_code"]) for answer in failed.values())
        raise AgreedError(f"{phase} failed on {len(failed)} of {comm.size} ranks\n  "
                          + "\n  ".join(shown), worst) from cause
    return [answer["value"] for answer in answers]


def _error_answer(error: HpcbenchError | OSError) -> dict[str, Any]:
    """Return an error as JSON values; what the machine refuses is for the user to mend."""
    code = error.exit_code if isinstance(error, HpcbenchError) else FileError.exit_code
    return {"error": masked(str(error), os.environ), "exit_code": int(code)}
