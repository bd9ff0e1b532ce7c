"""What lines up ranks of one node: memory where each has a core, gloo elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RANKS = """
import os, sys
import numpy as np
import torch.distributed as dist
import hpcbench.measurement.control as control
from hpcbench.backends.groups import control_of_node
ranks, how = int(sys.argv[1]), sys.argv[3]
rank = next((other for other in range(1, ranks) if os.fork() == 0), 0)
if how == "one core":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if ranks == 3:  # of machines with more cores than this one may have
    control.own_cores = lambda: [2, 3] if rank == 2 else [0]
    control.granted_cores = lambda files: 4
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=ranks)
if how == "no file of rank 0" and rank:
    def hidden(path):
        raise FileNotFoundError(path)
    control.Path = hidden
found = control_of_node(rank, ranks, 20)
greatest = found.maximum(np.array([rank, 5 - rank])).tolist()
os.write(1, f"{type(found).__name__} {greatest}\\n".encode())  # at once: lines do not mix
found.barrier()
dist.destroy_process_group()
sys.exit(rank == 0 and any(os.wait()[1] for other in range(1, ranks)))
"""
"""The first starts the others, so that torch is imported once."""


@pytest.mark.parametrize(("how", "kind"), [
    ("a core each", "SharedControl"), ("one core", "GlooControl"),
    ("two of three on one core", "GlooControl"), ("no file of rank 0", "GlooControl")])
def test_memory_where_ranks_have_cores_and_see_it(tmp_path: Path, how: str, kind: str) -> None:
    n = 3 if how.startswith("two of three") else 2
    done = subprocess.run(
        [sys.executable, "-c", RANKS, str(n), str(tmp_path / "store"), how], text=True,
        stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == f"{kind} [{n - 1}, 5]\n" * n
