"""The rules of this test suite: allowed skips, what waits for a flag, what runs at once, mpirun."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from hpcbench.backends.availability import COMPILER, tool_facts
from launcher import MpiLauncher, launcher_for
from nvml_standins import Standins
from tiers import unread, waiting
from untested import closing_line

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler.protocol import Scheduling

settings.register_profile(  # a slow or busy machine is no reason to fail
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("any machine"), max_examples=25)
settings.load_profile("any machine")

Report = pytest.TestReport | pytest.CollectReport
UNREAD = pytest.StashKey[Callable[[Path], bool]]()
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests of full.txt")
    parser.addoption("--all", action="store_true", help="--full, and the tests marked soak")


def pytest_configure(config: pytest.Config) -> None:
    """Let commands hear signals that nohup, or ``&`` of a shell, has this process ignore.

    What is ignored stays so in them, what is handled does not; here it still does nothing.
    They also keep bytecode: without it each process compiles the package, which takes 0.4 s.
    Without --all, tests of hypothesis try 25 examples, unless they say how many they need, and no
    write of this process waits for the disk: no test cuts the power.
    """
    if not config.getoption("--all"):
        settings.load_profile("quick")
        os.fsync = os.fdatasync = lambda fd: None  # type: ignore[assignment,misc]
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.pop("COLUMNS", None)  # pytest-xdist says 80: outputs are those of a pipe


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which all tests wait for a flag."""
    if UNREAD not in config.stash:
        config.stash[UNREAD] = unread(config)
    return config.stash[UNREAD](collection_path) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what waits for a flag: a deselected test was not asked for, so it is no skip."""
    waits = waiting(config)
    later = {item for item in items if waits(item)}
    if later:
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]


def pytest_collection_finish() -> None:
    """Spare collections of garbage what is imported by now: at all of torch each takes 0.2 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """After a green run of all tests, say last what was not tested."""
    yield
    config = session.config
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if (terminal is None or session.exitstatus != pytest.ExitCode.OK or config.option.collectonly
            or config.args_source is not pytest.Config.ArgsSource.TESTPATHS):
        return
    full = config.getoption("--full") or config.getoption("--all")
    terminal.write_line(closing_line(full))


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


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Standins:
    """Return machines with GPUs for pynvml (tests/nvml_standins.py), each built once."""
    return Standins(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def compiler() -> None:
    """Skip where torch.compile cannot work on the CPU."""
    reason = tool_facts([COMPILER])[COMPILER]["cpu"]
    if reason:
        pytest.skip(f"no compiler: {reason}")


@pytest.fixture
def gpus() -> int:
    """Return how many GPUs of CUDA there are; skip where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        seen = "has no CUDA" if torch.version.cuda is None else "sees no GPU"
        pytest.skip(f"no GPU: torch {torch.__version__} {seen}")
    return torch.cuda.device_count()
