"""A worker between two cases, in this process."""

from __future__ import annotations

import pytest

from hpcbench import worker
from hpcbench.backends.devices import CpuDevice
from hpcbench.config.load import check_config
from hpcbench.launch.messages import CaseAnswer, CaseRequest, JoinRequest, StoreAnswer, StoreRequest
from hpcbench.measurement.control import SharedProgress
from hpcbench.plan.expand import make_plan
from hpcbench.trace.clock import ClockModel


def test_memory_that_a_case_left_is_given_back_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Device(CpuDevice):
        def give_back(self) -> None:
            log.append("given back")

    monkeypatch.setattr(worker, "open_device", lambda name, gpu: Device())
    cases = make_plan(check_config({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "size": [8, 16, 32], "iterations": 2,
         "backend": "gloo"}]}, "test"), 1).cases
    one = worker.Worker(SharedProgress.create(9))
    try:
        store = one.answer(StoreRequest("127.0.0.1", (0,), 20.0))
        assert isinstance(store, StoreAnswer)
        one.answer(JoinRequest("127.0.0.1", store.port, 0, 1, 0, 1, None, 20.0))
        for number, case in enumerate(cases):
            answer = one.answer(CaseRequest(
                case, number, "cpu", (), ClockModel.identity(0), 1.0, 0.1))
            assert isinstance(answer, CaseAnswer), answer
            log.append(case.label)
    finally:
        one.abandon()
    assert log == [line for case in cases for line in ("given back", case.label)]
