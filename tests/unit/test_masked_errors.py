"""Errors are told without the secrets in them, wherever they are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from hpcbench.__main__ import main
from hpcbench.backends.devices import one_line
from hpcbench.errors import FileError
from hpcbench.launch.communicator import Communicator
from hpcbench.launch.messages import FailureAnswer, Request
from hpcbench.launch.session import AgreedError, on_all
from hpcbench.launch.supervisor import inline_evidence
from hpcbench.launch.verdict import RankOutcome
from hpcbench.launch.worker_pool import InlineWorker
from hpcbench.measurement.control import SharedProgress
from hpcbench.run import worker_class
from hpcbench.texts import MOST_CHARACTERS, print_traceback

SECRET = "planted-s3cr3t-value"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)


@pytest.fixture
def worker() -> Iterator[InlineWorker]:
    progress = SharedProgress.create(10)
    yield InlineWorker((), progress, None, worker_class)
    progress.close()


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("room", range(0, len(SECRET) + 1, 4))
def test_a_secret_is_masked_before_its_line_is_cut(room: int) -> None:
    """The beginning of a secret is not known as one."""
    text = "x" * (MOST_CHARACTERS - room)
    said = one_line(RuntimeError(f"{text}{SECRET} and more\nsecond line"))
    shown, rest = f"{text}*** and more"[:MOST_CHARACTERS], len("*** and more") - room
    assert said == f"RuntimeError: {shown}" + f"... {rest} more characters" * (rest > 0)


def test_a_long_text_is_cut_with_a_count(capsys: Capture) -> None:
    """In less time than to mask all of it, which takes seconds."""
    try:
        raise RuntimeError(SECRET + "y" * 5_000_000 + SECRET)
    except RuntimeError:
        print_traceback({"HF_TOKEN": SECRET})
    printed = capsys.readouterr().err
    assert len(printed) < 20_000 and SECRET not in printed and printed.count("***") == 2
    said = one_line(RuntimeError("y" * 5_000_000))
    assert said == f"RuntimeError: {'y' * MOST_CHARACTERS}... 4,999,700 more characters"


def test_a_secret_of_several_lines_is_masked_before_they_are_parted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "a1\nb2\nc3")
    assert one_line(ValueError("no key a1\nb2\nc3 here")) == "ValueError: no key *** here"


def test_no_message_forges_a_line_of_a_traceback(capsys: Capture) -> None:
    forged = "hpcbench: all is well"
    try:
        try:
            raise ValueError(f"a\n{forged}")
        except ValueError as error:
            raise RuntimeError(f"b\n{forged}\n\u202ec") from error
    except RuntimeError:
        print_traceback({})
    shown = capsys.readouterr().err
    assert forged not in shown.splitlines() and "\u202e" not in shown
    assert shown.splitlines()[-1] == f"RuntimeError: b\\n{forged}\\n\\u202ec"


@pytest.mark.usefixtures("secret")
def test_an_answer_and_the_traceback_beside_it(worker: InlineWorker, capsys: Capture) -> None:
    worker.send(cast("Request", SECRET))
    answer, printed = worker.receive(), capsys.readouterr().err
    assert answer == FailureAnswer(RankOutcome.EXCEPTION, "CaseError: unknown request '***'")
    assert printed.startswith("Traceback (most recent call last):\n")
    assert printed.endswith("CaseError: unknown request '***'\n") and SECRET not in printed


def test_the_evidence_of_a_watchdog(
    worker: InlineWorker, monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker.send(cast("Request", SECRET))  # the worker does not know it as one
    monkeypatch.setenv("HF_TOKEN", SECRET)
    evidence = inline_evidence(0, worker)
    assert (evidence.outcome, evidence.cause) == (
        RankOutcome.EXCEPTION, "CaseError: unknown request '***'")


@pytest.mark.usefixtures("secret")
def test_what_a_rank_reports_to_others() -> None:
    def fails() -> None:
        raise FileError(f"{SECRET}/trace: no such folder")

    with pytest.raises(AgreedError, match=r"rank 0: \*\*\*/trace: no such folder"):
        on_all(Communicator(), "opening", fails)


@pytest.mark.usefixtures("secret")
def test_the_one_line_of_a_command(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.argv", ["hpcbench", "reduce", f"/no/{SECRET}"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("hpcbench: /no/***: no such folder")
