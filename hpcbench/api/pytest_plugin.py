"""The pytest fixture ``hpcbench_measure``, by the entry point ``pytest11``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hpcbench.api.measurement import Measurement

_LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def hpcbench_measure(request: pytest.FixtureRequest) -> Iterator[Callable[..., Measurement]]:
    """Give `hpcbench.measure`, named after the test. In a test run that MPI launched ``group`` is
    MPI.COMM_WORLD unless given. Results are printed at the end of the run."""
    from hpcbench import measure

    lines = request.config.stash.setdefault(_LINES, [])

    def named(fn: Callable[[], object], **options: Any) -> Measurement:
        options.setdefault("name", request.node.name)
        if options.get("group") is None:
            options["group"] = _world()
        result: Measurement = measure(fn, **options)
        lines.append(str(result))
        return result

    yield named


def _world() -> Any:
    """Return the communicator of all ranks of an MPI launch; None elsewhere, as under torchrun."""
    from hpcbench.launch.launcher import announced_size, by_torchrun

    announced = announced_size(os.environ)
    if announced is None or announced[0] == 1 or by_torchrun(os.environ):
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config,
) -> None:
    """Print a line for each measurement."""
    from hpcbench.texts import as_field

    if lines := config.stash.get(_LINES, []):
        terminalreporter.section("hpcbench")
        for line in lines:
            terminalreporter.line(as_field(line))
