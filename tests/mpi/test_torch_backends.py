"""Backends by torch's own names: known ones, absent ones, and those that a package registers."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import NOT_DRAWN, ONCE, read

from launcher import MpiLauncher
from packages import offer, path_with

REGISTERS = """
def register():
    import torch.distributed as dist

    class Relay(dist.ProcessGroup):
        def __init__(self, inner):
            super().__init__(inner.rank(), inner.size())
            self.inner = inner

        def allreduce(self, tensors, opts=None):
            return self.inner.allreduce(tensors, opts)

        def getBackendName(self):
            return "relay"

    def echo(store, rank, size, timeout):
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    def relay(store, rank, size, timeout):
        return Relay(echo(store, rank, size, timeout))

    def broken(store, rank, size, timeout):
        raise RuntimeError("no such fabric")

    for opener in (echo, relay, broken):
        dist.Backend.register_backend(opener.__name__, opener, devices=["cpu"])
"""
GLOO = ("gloo", "torch:gloo", "torch:GLOO", "torch:cpu:gloo", "torch:echo")
ABSENT = ("torch:no_such", "torch:fake", "torch:cpu:gloo,cuda:no_such")


@pytest.mark.mpi
def test_any_name_that_torch_knows_is_a_backend(mpirun: MpiLauncher, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "echo_backend.py").write_text(REGISTERS)
    offer(site, "echo", "torch.backends", {"echo": "echo_backend:register"})
    block = {"kind": "collective", "collective": "all_reduce", "size": "64KiB"}
    job = mpirun.run(2, config={
        "measure": {**ONCE, "warmup": 2, "iterations": 20}, "launch": {"timeout_s": 30},
        "output": NOT_DRAWN, "benchmarks": [
            {**block, "collective": ["all_reduce", "all_gather"], "backend": [*GLOO, *ABSENT]},
            {**block, "backend": "torch:relay", "async": [False, True]},
            {**block, "backend": "torch:echo", "device": "cuda"},
            {**block, "backend": ["torch:broken"]},
            {"kind": "primitive", "primitive": "tp_columnwise", "implementations": "torch",
             "m": 64, "n": 32, "k": 32, "backend": [*GLOO]}]},
        env=path_with(site)).check(1)
    cases = read(job.folder).results.cases
    ran = [item for item in cases if item.case.backend in (*GLOO, "torch:relay")
           and item.case.device != "cuda"]
    assert len(ran) == 2 * len(GLOO) + 2 + len(GLOO)
    for item in ran:
        assert (item.status, item.n_wrong, item.device) == ("ok", 0, "cpu"), item.reason
    absent = [item for item in cases if item.case.backend in ABSENT or item.case.device == "cuda"]
    assert len(absent) == 2 * len(ABSENT) + 1 and {item.status for item in absent} == {"skipped"}
    assert all("echo" in item.reason for item in absent)
    (broken,) = [item for item in cases if item.case.backend == "torch:broken"]
    assert broken.status == "failed" and "no such fabric" in broken.reason
    assert all(f"torch:{name}" in job.stdout for name in ("GLOO", "cpu:gloo", "echo", "relay"))
