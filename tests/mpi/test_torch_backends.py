"""Backends by torch's own names: known ones, absent ones, and one that a package registers."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import ONCE, read

from launcher import MpiLauncher
from packages import offer

REGISTERS = """
def register():
    import torch.distributed as dist

    def opened(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("echo", opened, devices=["cpu"])
"""


@pytest.mark.mpi
def test_any_name_that_torch_knows_is_a_backend(mpirun: MpiLauncher, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "echo_backend.py").write_text(REGISTERS)
    offer(site, "echo", "torch.backends", {"echo": "echo_backend:register"})
    names = ["gloo", "torch:gloo", "torch:cpu:gloo", "torch:echo", "torch:no_such"]
    job = mpirun.run(2, config={
        "measure": {**ONCE, "warmup": 2, "iterations": 20}, "launch": {"timeout_s": 30},
        "benchmarks": [{"kind": "collective", "collective": ["all_reduce", "all_gather"],
                        "size": "64KiB", "backend": names}]},
        env={"PYTHONPATH": str(site)}).check(0)
    results = read(job.folder).results
    found = {(item.case.backend, item.case.workload.name): item for item in results.cases}
    for name in names[:-1]:
        for collective in ("all_reduce", "all_gather"):
            item = found[name, collective]
            assert (item.status, item.n_wrong, item.device) == ("ok", 0, "cpu"), item.reason
    absent = found["torch:no_such", "all_reduce"]
    assert absent.status == "skipped" and "no_such" in absent.reason and "echo" in absent.reason
    times = [found[name, "all_reduce"].statistics.min_s for name in names[:2]]
    assert max(times) < 20 * min(times)
