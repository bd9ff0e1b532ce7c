"""A worker that was killed and does not go: how long its supervisor waits, and what it says."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hpcbench.config.load import check_config
from hpcbench.launch import worker_process
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.messages import CaseRequest
from hpcbench.launch.template_process import (
    JoinedTemplate,
    TemplateProcess,
    process_state,
    worker_environment,
)
from hpcbench.launch.worker_pool import WorkerPool
from hpcbench.launch.worker_process import Template, TemplateSpec
from hpcbench.measurement.control import SharedProgress
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
        continued = threading.Event()

        def go_on() -> None:
            continued.set()
            os.kill(template, signal.SIGCONT)

        later = threading.Timer(3.0, go_on)
        if waits:
            later.start()
        worker.kill()
        assert not continued.is_set(), "the case is recorded before"
        worker.await_end()
        assert continued.is_set() is waits
        (later.join if waits else go_on)()
    assert words in capfd.readouterr().err


def test_a_request_to_stop_does_not_wait_for_it() -> None:
    """Slurm kills what has not ended 30 s after its request (KillWait)."""
    env = worker_environment(os.environ, (), {})
    stop = StopRequests()
    with WorkerPool(TemplateSpec(env, 120.0), SharedProgress.create(9)) as pool:
        worker = pool.start_worker(())
        template = parent_of(worker.pid)
        os.kill(template, signal.SIGSTOP)
        worker.kill()
        asks = threading.Timer(0.5, stop.handle, (signal.SIGTERM, None))
        began = time.monotonic()
        asks.start()
        worker.await_end(stop)
        took = time.monotonic() - began
        os.kill(template, signal.SIGCONT)
    assert 0.4 < took < worker_process._GONE_S


def test_one_that_ended_while_nobody_waited_took_no_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:
    """Cases of backend mpi run between the end of a worker and the start of the next one."""
    monkeypatch.setattr(worker_process, "_GONE_S", 0.2)
    env = worker_environment(os.environ, (), {})
    with WorkerPool(TemplateSpec(env, 120.0), SharedProgress.create(9)) as pool:
        worker = pool.start_worker(())
        worker.kill()
        while process_state(worker.pid):
            time.sleep(0.01)
        time.sleep(0.5)
        worker.await_end()
    assert "after it was killed" not in capfd.readouterr().err


def test_ranks_that_share_a_template_end_their_workers_apart() -> None:
    """The one whose template it is may close it first; at the end nothing is left."""
    env = worker_environment(os.environ, (), {})
    spec, shared = TemplateSpec(env, 120.0), TemplateProcess(env, is_shared=True)
    with (contextlib.closing(SharedProgress.create(9)) as progress,
          contextlib.closing(Template(spec, early=shared)) as own,
          contextlib.closing(Template(spec, early=JoinedTemplate(env, os.getpid()))) as other):
        mine, others = own.fork({}, 0, progress), other.fork({}, 0, progress)
        assert parent_of(mine.pid) == shared.process.pid
        assert parent_of(parent_of(others.pid)) == shared.process.pid
        assert [os.getsid(worker.pid) for worker in (mine, others)] == [
            shared.process.pid, parent_of(others.pid)], "the kernel shares cores among sessions"
        with contextlib.closing(JoinedTemplate({**env, "CUDA_VISIBLE_DEVICES": "1"},
                                               os.getpid())) as unlike:
            assert unlike.is_alive()
            unlike.control.settimeout(30.0)
            assert unlike.control.recv(9) == b"", "its rank set a variable after its start"
        own.close()
        while process_state(mine.pid) not in ("", "Z"):
            time.sleep(0.01)
        assert other.is_alive() and other.exit_code(others.pid, 0.0) is None
        others.kill()
        assert other.exit_code(others.pid, 60.0) == -signal.SIGKILL
        again = other.fork({}, 0, progress)
        os.kill(parent_of(again.pid), signal.SIGKILL)
        assert shared.exit_code(60.0) == 0 and not other.is_alive()
        assert again.how_it_ended().endswith("together with its template process, exit status "
                                             "unknown")
        mine.kill()
        again.kill()


def parent_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(text.rpartition(")")[2].split()[1])
