from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from hpcbench.launch import template_process as processes
from hpcbench.launch.template_process import KILLED_FOR_MEMORY
from hpcbench.launch.verdict import Evidence, RankOutcome
from hpcbench.launch.worker_group import Observation, with_advice
from hpcbench.launch.worker_process import Template, WorkerProcess
from results_factory import make_case
from training_cases import make_training, make_training_case


def sighting(cause: str) -> Observation:
    return Observation(Evidence(1, RankOutcome.DIED, cause))


def test_a_training_that_the_kernel_killed_for_memory_states_what_would_fit() -> None:
    killed = sighting(f"worker ended by signal 9 (SIGKILL), {KILLED_FOR_MEMORY} (cgroup oom_kill)")
    options = (("bucket_mb", 25), ("comm_hook", "none"))
    case = make_training_case(make_training(batch_size=2**20, options=options))
    told = with_advice(killed, case, 2).evidence.cause
    assert told.startswith(killed.evidence.cause)
    assert re.search(r": [\d.]+ GiB for each rank; predicted [\d.]+ .iB; to fit, as predicted: "
                     r"batch_size \d+, or accumulation \d+$", told)
    assert with_advice(killed, make_case(), 2) == killed
    other = sighting("worker ended by signal 11 (SIGSEGV)")
    assert with_advice(other, case, 2) == other


class Killed(Template):
    """A template whose worker was killed."""

    def __init__(self) -> None:
        pass

    def exit_code(self, pid: int, timeout_s: float) -> int:
        return -signal.SIGKILL


@pytest.mark.parametrize(("before", "now", "told"), [
    (2, 3, True), (2, 2, False), (None, 3, False), (2, None, False), (None, None, False)])
def test_a_kill_for_memory_is_claimed_only_where_the_kernel_counted_it(
    monkeypatch: pytest.MonkeyPatch, before: int | None, now: int | None, told: bool,
) -> None:
    counts = iter((before, now))
    monkeypatch.setattr(processes, "oom_kills", lambda: next(counts))
    none: Any = None
    worker = WorkerProcess(Killed(), 1, none, none, none, -1)
    assert (KILLED_FOR_MEMORY in worker.how_it_ended()) is told
