"""The rules of this test suite: allowed skips, what ``--all`` adds, what runs at once, mpirun."""

from __future__ import annotations

import re
import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from hpcbench.backends.tools import COMPILER, tool_facts
from launcher import MpiLauncher, launcher_for

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler.protocol import Scheduling

settings.register_profile(  # a slow or busy machine is no reason to fail
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

Report = pytest.TestReport | pytest.CollectReport
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests marked soak")


def pytest_configure() -> None:
    """Let commands hear signals that nohup, or ``&`` of a shell, has this process ignore.

    What is ignored stays so in them, what is handled does not; here it still does nothing.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect soak tests without --all: a deselected test was not asked for, so it is no skip."""
    if config.getoption("--all"):
        return
    soaks = [item for item in items if item.get_closest_marker("soak")]
    if soaks:
        config.hook.pytest_deselected(items=soaks)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Return who gives tests to processes: with --dist loadfile, ours."""
    if config.getoption("dist") != "loadfile":
        return None
    from scheduling import AloneAtTheEnd

    return AloneAtTheEnd(config, log)


@dataclass(frozen=True)
class AllowedSkip:
    """One line of allowed_skips.txt; ``*`` stands for any text in both patterns."""

    nodeid: str
    reason: str

    def allows(self, nodeid: str, reason: str) -> bool:
        return _matches(self.nodeid, nodeid) and _matches(self.reason, reason)


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text, re.DOTALL) is not None


def allowed_skips(text: str) -> list[AllowedSkip]:
    """Parse allowed_skips.txt; every line must say why."""
    skips = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        nodeid, reason, why = (part.strip() for part in line.split("|"))
        assert why, f"say why: {line}"
        skips.append(AllowedSkip(nodeid, reason))
    return skips


def _forbid(report: Report) -> None:
    """Turn a skip that is not listed into a failure."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    listed = allowed_skips(ALLOWED_SKIPS.read_text(encoding="utf-8"))
    if not any(skip.allows(report.nodeid, reason) for skip in listed):
        report.outcome = "failed"
        report.longrepr = f"skipped, and {ALLOWED_SKIPS.name} does not allow it: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    report = yield
    _forbid(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Report, Report]:
    report = yield
    _forbid(report)
    return report


@pytest.fixture
def mpirun(request: pytest.FixtureRequest, tmp_path: Path) -> MpiLauncher:
    """Run jobs under mpirun: MPICH, or what EVERY_MPI asks for. Leaves no process behind."""
    return launcher_for(getattr(request, "param", "mpich"), tmp_path)


@pytest.fixture
def compiler() -> None:
    """Skip where torch.compile cannot work on the CPU."""
    reason = tool_facts([COMPILER])[COMPILER]["cpu"]
    if reason:
        pytest.skip(f"no compiler: {reason}")
