"""What the template and the probe do, with torch's CUDA build; started by test_cuda_wheel.py.

``kinds`` loads each kind as a template does, and prints for each, as JSON: how many threads this
process has then, whether CUDA is initialised, and whether a fork of it cannot use CUDA.
``probe`` gathers what a probe does, uses torch then, and prints the facts of CUDA.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import hpcbench.profiling.flight
import hpcbench.worker  # noqa: F401
from hpcbench.kinds.registry import kinds
from hpcbench.measurement.runner import runner_of
from hpcbench.plan.case import planner_of


def cuda_is_lost_in_a_fork() -> bool:
    """Return whether a child that is forked now could not initialise CUDA."""
    pid = os.fork()
    if pid == 0:
        os._exit(torch.cuda._is_in_bad_fork())
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def loaded_kinds() -> dict[str, tuple[int, bool, bool]]:
    """Load one kind after the other."""
    found = {}
    for name in kinds():
        runner_of(name)
        planner_of(name)
        found[name] = (len(list(Path("/proc/self/task").iterdir())), torch.cuda.is_initialized(),
                       cuda_is_lost_in_a_fork())
    return found


def probed() -> object:
    """Gather the facts, and see that this process still computes and forks."""
    from hpcbench.backends.facts import gather_facts

    facts = gather_facts()
    assert torch.ones(3).sum() == 3
    assert not torch.cuda.is_initialized()
    return facts["cuda"]


if __name__ == "__main__":
    print(json.dumps(loaded_kinds() if sys.argv[1] == "kinds" else probed()))
