"""torch's builds, the classes of plans, fp32, and the limits of a try."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from cuda_wheel import OVERRIDE, STORED, described
from hpcbench.errors import CaseError
from hpcbench.kinds.memory import run as limits
from hpcbench.kinds.memory.run import AS_REQUESTED, DataLimits, limits_of, refused_memory
from hpcbench.kinds.primitive.plan.dispatch import DISPATCHERS
from hpcbench.kinds.primitive.plan.implementations import IMPLEMENTATIONS, PRIMITIVES
from hpcbench.kinds.primitive.run.implementations import in_turn
from launcher import ROOT

FACTS = json.loads(STORED.read_text(encoding="utf-8"))


def test_both_builds_take_the_same_arguments() -> None:
    here = {name: described(name) for name in FACTS["names"]}
    only_in_the_other = {name for name in here if here[name] != FACTS["names"][name]}
    assert only_in_the_other == {"torch._C._distributed_c10d._dump_nccl_trace_json",
                                 "torch.distributed.ProcessGroupNCCL.Options"}


@pytest.mark.parametrize("override", ["0", "1"])
def test_both_builds_round_alike_by_default(override: str) -> None:
    code = "import json, cuda_wheel; print(json.dumps(cuda_wheel.defaults()))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests", text=True, check=True,
                          stdout=subprocess.PIPE, env={**os.environ, OVERRIDE: override}).stdout
    with_override = FACTS["defaults_with_override"] if override == "1" else {}
    assert json.loads(told) == FACTS["defaults"] | with_override


def test_every_implementation_has_the_classes_that_its_row_names() -> None:
    """In a plan they are texts, and what only loads with a case must load, too."""
    paths = {path for spec in (*IMPLEMENTATIONS, *DISPATCHERS) if "triton" not in spec.modules
             for path in spec.runners.values()} | {spec.inputs for spec in PRIMITIVES}
    for module, _, name in (path.partition(":") for path in paths):
        assert isinstance(getattr(import_module(module), name), type), name
    assert import_module(f"{in_turn.__package__}.functional_collectives")


NEW_API = "torch.backends.cuda.matmul.fp32_precision = 'tf32'"
OLD_API = "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True"
OF_ALL = "torch.backends.fp32_precision = 'tf32'"
ASKED = """
import torch
from hpcbench.backends.devices import open_device
{before}
open_device("cpu", None)
from hpcbench.kinds.hardware.run.gemm import _tf32
def tells():
    print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
          torch.get_float32_matmul_precision())
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
        assert torch.backends.cudnn.rnn.fp32_precision == "ieee"
tells()
with _tf32():
    assert torch.backends.cuda.matmul.allow_tf32
    tells()
tells()
"""


@pytest.mark.parametrize(("before", "override"), [
    ("", "1"), (OF_ALL, None), (f"{OLD_API}; {NEW_API}", "1")])
def test_every_device_is_opened_with_fp32_in_fp32(before: str, override: str | None) -> None:
    variables = {} if override is None else {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": override}  # NGC
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", ASKED.format(before=before)], text=True,
        capture_output=True, env={**os.environ, **variables}, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "False False highest", "True False high", "False False highest"]


MIB = 2**20


def _in_child(answers: Connection) -> None:
    """Take memory within a limit until there is no more, and tell what that was like."""
    device, taken = torch.device("cpu"), list[torch.Tensor]()
    try:
        with limits_of(device, 1) as within:
            taken.append(torch.ones(40 * MIB, dtype=torch.uint8))
            within.begin(64 * MIB)
            while len(taken) < 100:
                taken.append(torch.ones(MIB, dtype=torch.uint8))
    except RuntimeError as error:
        answers.send((refused_memory(error), len(taken), within.limit,
                      resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY,
                      Path("/proc/self/oom_score_adj").read_text().strip()))


def test_a_process_takes_as_much_as_its_limit_beyond_what_it_had() -> None:
    """A new process, as workers are: memory that an old one has freed is within no limit."""
    ours, theirs = (context := get_context("spawn")).Pipe()
    child = context.Process(target=_in_child, args=(theirs,))
    child.start()
    assert ours.poll(60)
    refused, n_taken, limit, is_back, score = ours.recv()
    child.join(60)
    assert refused and 40 <= n_taken <= 65, "1 MiB each, the first of 40 MiB is no part of it"
    assert limit == (64 * MIB, AS_REQUESTED)
    assert is_back and score == "1000", "the kernel ends the worker before its supervisor"


def test_without_a_limit_a_rank_has_its_share_of_what_is_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "granted_memory", lambda *_: (10**12, "the cgroup's"))
    size, of = DataLimits(4)._share(0, 10**9)
    assert (size, of.partition(",")[0]) == (25 * 10**10 - 10**9, "the cgroup's")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5 * 10**9, 5 * 10**9))
    assert DataLimits(4)._share(10**9, 0) == (
        4 * 10**9, "what was left of launch.memory_limit_gb")


class FalseGpu:
    """What `torch.cuda` says of a GPU of 80 GB, of which others have 10."""

    def __init__(self) -> None:
        self.fractions: list[float] = []

    def empty_cache(self) -> None:
        pass

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 69 * 10**9, 80 * 10**9

    def memory_reserved(self, device: torch.device) -> int:
        return 10**9

    def set_per_process_memory_fraction(self, fraction: float, device: torch.device) -> None:
        self.fractions.append(fraction)


@pytest.mark.parametrize(("asked", "most", "fraction"), [
    (39 * 10**9, 39 * 10**9, 0.5), (0, 69 * 10**9, 0.875), (10**12, 79 * 10**9, 1.0)])
def test_on_a_gpu_the_allocator_is_limited_above_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, asked: int, most: int, fraction: float,
) -> None:
    gpu = FalseGpu()
    monkeypatch.setattr(torch, "cuda", gpu)
    with limits_of(torch.device("cuda", 0), 8) as within:
        within.begin(asked)
        assert within.limit is not None and within.limit[0] == most
    assert gpu.fractions == [fraction, 1.0]


def test_a_limit_that_cannot_be_is_reported() -> None:
    with pytest.raises(CaseError, match="nothing limits what torch takes on mps"), limits_of(
            torch.device("mps"), 1):
        pass
    assert refused_memory(RuntimeError("can't start new thread"))
    assert refused_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert refused_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ..."))
    assert not refused_memory(RuntimeError("shapes differ"))
