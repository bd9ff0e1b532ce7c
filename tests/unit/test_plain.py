"""Messages of supervisors and workers as JSON and back; what is no message is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.config.section import Fault
from hpcbench.launch.messages import (
    ANSWERS,
    FORK_REQUESTS,
    REQUESTS,
    CaseAnswer,
    CaseRequest,
    DoneAnswer,
    DryRunAnswer,
    FactsAnswer,
    FailureAnswer,
    ForkRequest,
    JoinRequest,
    StoreRequest,
    decoded,
    encoded,
)
from hpcbench.launch.run_folder import _RUN_FOLDER
from hpcbench.launch.verdict import EVIDENCE, Evidence, RankOutcome
from hpcbench.plain import Plain
from hpcbench.trace.clock import ClockModel
from results_factory import make_case

CASE = {"begin_ns": 1, "end_ns": 2, "device": "cpu", "answer": "case"}


@pytest.mark.parametrize(("form", "message"), [
    (REQUESTS, StoreRequest("a\udc80", (1, 2), 1.5)),
    (REQUESTS, JoinRequest("a", 1, 0, 2, 0, 2, None, 60.0)),
    (REQUESTS, CaseRequest(make_case(), 1, "cpu", (Fault(rank=1, kind="slow"),),
                           ClockModel.identity(0), float("inf"), 0.1)),
    (ANSWERS, CaseAnswer(-2**63, 2, "cpu", phases={"forward": [1, 2]}, detail={"a": [1, None]})),
    (ANSWERS, DryRunAnswer({"all_reduce": (1, 2)})), (ANSWERS, DoneAnswer()),
    (ANSWERS, FactsAnswer({"torch": {"a": 1.5}})), (ANSWERS, FailureAnswer(RankOutcome.DIED, "x")),
    (FORK_REQUESTS, ForkRequest({"A": "b"}, 0, 9)), (EVIDENCE, Evidence(1, RankOutcome.OK))])
def test_a_message_comes_back(form: Plain[Any], message: object) -> None:
    assert decoded(form, encoded(form, message)) == message


@pytest.mark.parametrize(("form", "plain"), [
    (ANSWERS, []), (ANSWERS, {"answer": "other"}), (ANSWERS, {"answer": "store"}),
    (ANSWERS, {**CASE, "end_ns": 2**63}), (ANSWERS, {**CASE, "end_ns": "2"}),
    (ANSWERS, {**CASE, "device": None}), (ANSWERS, {**CASE, "phases": {"a": 1}}),
    (ANSWERS, {"answer": "dry_run", "calls": {"a": [1]}}),
    (EVIDENCE, {"rank": True, "outcome": "ok"}), (EVIDENCE, {"rank": 1, "outcome": "fine"}),
    (FORK_REQUESTS, {"env": {"A": 1}, "memory_limit_bytes": 0, "capacity": 1}),
    (_RUN_FOLDER, {"path": None, "run_id": ""})])
def test_anything_else_is_refused(form: Plain[Any], plain: object) -> None:
    with pytest.raises(ValueError, match="."):
        form.read(plain)
