"""A worker that was killed and does not go: how long its supervisor waits, and what it says."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hpcbench.config.load import check_config
from hpcbench.launch.workers import worker_process
from hpcbench.launch.workers.environment import worker_environment
from hpcbench.launch.workers.messages import CaseRequest
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.launch.workers.worker_process import TemplateSpec
from hpcbench.measure.progress import SharedProgress
from hpcbench.plan.expand import make_plan
from hpcbench.trace.clock import ClockModel


@pytest.mark.parametrize(("device", "waits", "words"), [
    ("cpu", False, "was killed, and is still there after"),
    ("cuda", True, "s to end after it was killed")])
def test_a_worker_that_used_a_gpu_is_given_longer_to_go(
    device: str, waits: bool, words: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A stopped template tells of no end, as a driver lets no process end that it is busy with."""
    monkeypatch.setattr(worker_process, "_GONE_S", 0.5)
    monkeypatch.setattr(worker_process, "_GONE_ON_GPU_S", 60.0)
    (case,) = make_plan(check_config({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "size": 8}]}, "test"), 1).cases
    env = worker_environment(os.environ, (), {})
    with WorkerPool(TemplateSpec(env, 120.0, ("collective",)), SharedProgress.create(9)) as pool:
        worker = pool.start_worker(())
        worker.send(CaseRequest(case, 1, device, (), ClockModel.identity(0), 1.0, 0.1))
        template = parent_of(worker.pid)
        os.kill(template, signal.SIGSTOP)
        goes_on = threading.Timer(3.0, os.kill, (template, signal.SIGCONT))
        goes_on.start()
        began = time.monotonic()
        worker.kill()
        took = time.monotonic() - began
        goes_on.join()
    assert (took > 2.0) is waits
    assert words in capfd.readouterr().err


def parent_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(text.rpartition(")")[2].split()[1])
