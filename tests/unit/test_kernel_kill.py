from __future__ import annotations

import re

from hpcbench.launch.verdicts.verdict import Evidence, Outcome
from hpcbench.launch.workers.observation import Observation, with_advice
from hpcbench.launch.workers.processes import KILLED_FOR_MEMORY
from results_factory import make_case
from training_cases import make_training, make_training_case


def sighting(cause: str) -> Observation:
    return Observation(Evidence(1, Outcome.DIED, cause))


def test_a_training_that_the_kernel_killed_for_memory_says_what_would_fit() -> None:
    killed = sighting(f"worker ended by signal 9 (SIGKILL), {KILLED_FOR_MEMORY} (cgroup oom_kill)")
    options = (("bucket_mb", 25), ("comm_hook", "none"))
    case = make_training_case(make_training(batch_size=2**20, options=options))
    told = with_advice(killed, case, 2).evidence.cause
    assert told.startswith(killed.evidence.cause)
    assert re.search(r": [\d.e+]+ GB for each rank; predicted [\d.e+]+ GB; to fit, as predicted: "
                     r"batch_size \d+, or accumulation \d+$", told)
    assert with_advice(killed, make_case(), 2) == killed
    other = sighting("worker ended by signal 11 (SIGSEGV)")
    assert with_advice(other, case, 2) == other
