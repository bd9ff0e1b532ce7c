"""What collections of garbage before each case have to look at."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hpcbench.launch.worker_pool import InlineWorker
from hpcbench.measurement.control import SharedProgress
from hpcbench.run import worker_class


@pytest.fixture
def progress() -> Iterator[SharedProgress]:
    made = SharedProgress.create(10)
    yield made
    made.close()


def test_no_case_of_an_inline_worker_has_to_scan_torch(progress: SharedProgress) -> None:
    """Cases of backend mpi took 0.2 s longer, each."""
    InlineWorker((), progress, None, worker_class)
    assert len(gc.get_objects()) < 1000 < 100_000 < gc.get_freeze_count()
