"""What an operation is to the measuring loop, and what a library without torch gets to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from hpcbench.operations.place import Place


class AnyOperation(Protocol):
    """A workload on this rank, ready to be called."""

    name: str
    place: Place

    def prepare(self) -> None:
        """Restore inputs and wipe outputs."""

    def run(self) -> None:
        """Do the work once."""

    def spoil(self) -> None:
        """Make the result wrong, for tests of the check."""

    def check(self) -> object | None:
        """Return what is wrong with the last result, or None."""


@runtime_checkable
class Telling(Protocol):
    """An operation that has values beside its rows, and resources to close."""

    def answer(self) -> dict[str, Any]:
        """Return the values beside the rows, as plain JSON values."""

    def close(self) -> None:
        """Close what was opened. All ranks call it."""


@runtime_checkable
class Wrong(Protocol):
    """What is wrong with a result: how many elements, and the first of them in words."""

    @property
    def n_wrong(self) -> int:
        """Return the number of wrong elements."""

    @property
    def words(self) -> str:
        """Return it for people."""


@runtime_checkable
class Draggable(Protocol):
    """An operation whose samples can be made to take longer, for tests."""

    def drag(self, seconds: float) -> None:
        """Make each sample of this rank take this much longer."""


@runtime_checkable
class Stepping(Protocol):
    """An operation whose samples have steps, in each of which it waits for certain ranks.

    What waits for whom is then known of one that hangs (`plan.workload.Workload.step_words`).
    """

    tell_step: Callable[[int], None]
    """Called with the number of each step, from 1, when it begins; with 0 behind the last."""


def close(operation: AnyOperation, *, tells: bool = True) -> dict[str, Any]:
    """Close an operation that needs it; return what it reports beside its rows, if it ``tells``."""
    if not isinstance(operation, Telling):
        return {}
    reported = operation.answer() if tells else {}
    operation.close()
    return reported


def total_wrong(found: Sequence[object], *, checked: bool) -> tuple[int, str]:
    """Return how many elements all checks found wrong, -1 without a check, and the first.

    What is said is of the first wrong call; the sum, which may be more than a call has, says so.
    """
    if not checked:
        return -1, ""
    mismatches = [item for item in found if isinstance(item, Wrong)]
    total = sum(item.n_wrong for item in mismatches)
    words = mismatches[0].words if mismatches else ""
    several = f" ({total} in {len(mismatches)} calls)" if len(mismatches) > 1 else ""
    return total, words + several


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a collective works on, on one rank.

    ``source`` is None where the rank gives nothing of its own, or gives what is in ``output``.
    ``root`` is a rank of the group; ``op`` is empty where nothing is reduced.
    """

    source: torch.Tensor | None
    output: torch.Tensor | None
    op: str = ""
    root: int = 0


@runtime_checkable
class Lane(Protocol):
    """A group that makes its own calls of collectives; it is no group of torch's."""

    def prepared(self, collective: str, buffers: Buffers) -> Callable[[], object]:
        """Return the call, ready to be made again and again."""
