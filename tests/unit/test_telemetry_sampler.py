"""The thread that reads: by the clock and when asked, past what raises and what hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_machine import FakeNvml, make_machine
from hpcbench.config.schema import Telemetry
from hpcbench.telemetry import sampler as sampler_module
from hpcbench.telemetry.opening import Seams, open_sampler
from hpcbench.telemetry.sampler import Sampler
from hpcbench.telemetry.source import Source, UnreadableError, Values
from hpcbench.trace.telemetry import TABLES, Rows, Told

FAST = Telemetry(rate_hz=10)


class Counting(Source):
    """Counts how often it was read; raises or hangs where it should."""

    table = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.devices = ["all cores"]
        self.count = 0
        self.error: Exception | None = None
        self.hang: threading.Event | None = None
        self.blocked: set[signal.Signals] = set()

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        self.count += 1
        self.blocked = set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        if self.error:
            raise self.error
        if self.hang:
            self.hang.wait()
        yield 0, {"user_ns": self.count}


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "never came"
        time.sleep(0.01)


def marked(sampler: Sampler, source: Counting) -> None:
    """Mark, and wait until a busy machine has really read."""
    before = source.count
    sampler.mark()
    until(lambda: source.count > before)


def test_reads_when_asked_and_by_the_clock() -> None:
    source = Counting()
    with Sampler([[source]], 10, {}) as sampler:
        marked(sampler, source)
        until(lambda: source.count > 3)
        rows = sampler.take()["cpu"]
    assert rows.shape[1] == 2 + len(TABLES["cpu"].names)
    assert rows[:, 2].tolist() == [*range(1, len(rows) + 1)]
    assert (rows[1:, 0] > rows[:-1, 0]).all() and not sampler.take().get("nothing")
    assert signal.SIGTERM in source.blocked and signal.SIGINT in source.blocked


def test_only_marks_around_what_shares_the_process() -> None:
    source = Counting()
    with Sampler([[source]], 10, {}) as sampler:
        with sampler.only_marks():
            time.sleep(0.15)  # a reading by the clock that had begun is over
            before = source.count
            time.sleep(0.35)
            assert source.count == before
            marked(sampler, source)
        until(lambda: source.count > before + 2)


def test_a_source_that_raises_costs_its_table() -> None:
    broken, sound = Counting(), Counting()
    sound.table = "network"  # type: ignore[misc]
    broken.error = UnreadableError("its file went")
    with Sampler([[broken, sound]], 10, {}) as sampler:
        until(lambda: sound.count > 2)
        assert broken.count == 1
        told = sampler.news()
    assert told == Told(10, {"network": ("all cores",)}, {"cpu": "its file went"})
    assert sampler.news() is None


def test_a_source_that_hangs_costs_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "HANGS_NS", 10**8)
    hanging, sound = Counting(), Counting()
    sound.table = "network"  # type: ignore[misc]
    hanging.hang = threading.Event()
    with Sampler([[hanging, sound]], 10, {}) as sampler:
        until(lambda: hanging.count)
        began = time.monotonic()
        sampler.mark()
        assert time.monotonic() - began < 1  # nobody waits for it
        time.sleep(0.15)
        sampler.mark()
        until(lambda: sound.count > 2)
        told = sampler.news()
        hanging.hang.set()  # it comes back late: nobody wants its rows
        time.sleep(0.05)
        assert set(sampler.take()) == {"network"} and hanging.count == 1
    assert told is not None and told.missing == {"cpu": "reading it did not return within 0.1 s"}


def test_a_call_of_nvml_that_hangs_costs_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "HANGS_NS", 10**8)
    nvml = FakeNvml()
    nvml.hanging.add("Temperature")
    wanted = Telemetry(rate_hz=10, without=("process", "cpu", "frequency", "energy", "network"))
    with open_sampler(wanted, local_rank=0, gpu_uuid="known",
                      seams=Seams(nvml=lambda: nvml)) as sampler:
        rows: list[Rows] = []

        def read_on() -> bool:
            sampler.mark()
            rows.extend(sampler.take().values())
            return bool(rows)

        until(read_on)
        told = sampler.news()
        nvml.release.set()
    assert told is not None and told.devices == {"gpu": ("known",)}
    assert told.missing["gpu.celsius"] == "reading it did not return within 0.1 s"
    columns = dict(zip(TABLES["gpu"].names, rows[0][0, 2:].tolist(), strict=True))
    assert (columns["power_mw"], columns["celsius"], columns["sm_mhz"]) == (250_000, -1, 1400)


def test_a_driver_in_which_all_hangs_costs_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "HANGS_NS", 10**8)
    nvml = FakeNvml()
    nvml.hanging |= nvml.values.keys()
    wanted = Telemetry(rate_hz=10, without=("process", "cpu", "frequency", "energy", "network"))
    with open_sampler(wanted, local_rank=0, gpu_uuid="known",
                      seams=Seams(nvml=lambda: nvml)) as sampler:
        def is_given_up() -> bool:
            sampler.mark()
            told = sampler.news()
            return told is not None and "gpu" in told.missing

        until(is_given_up)
        nvml.release.set()
    assert nvml.calls <= 3


def test_a_rank_reads_what_is_its_own(tmp_path: Path) -> None:
    seams = Seams(make_machine(tmp_path), FakeNvml)
    first = open_sampler(FAST, local_rank=0, gpu_uuid="known", seams=seams).news()
    other = open_sampler(FAST, local_rank=1, gpu_uuid=None, seams=seams).news()
    assert first is not None and other is not None
    assert first.devices.keys() == TABLES.keys() and not first.missing
    assert other == Told(10, {"process": ("worker",)}, {"gpu": "this rank has no NVIDIA GPU"})


def test_what_cannot_be_read_or_is_not_wanted_says_why(tmp_path: Path) -> None:
    root = make_machine(tmp_path, rapl=False, cpufreq=False)
    wanted = Telemetry(rate_hz=10, without=("network",))
    told = open_sampler(wanted, local_rank=0, gpu_uuid=None, seams=Seams(root)).news()
    assert told is not None and told.devices.keys() == {"process", "cpu"}
    assert told.missing["energy"].endswith("powercap: no RAPL domain")
    assert told.missing["frequency"].endswith("scaling_cur_freq: No such file or directory")
    assert told.missing["network"] == "not wanted (telemetry.without)"


def test_nothing_is_read_where_nothing_is_wanted(tmp_path: Path) -> None:
    threads = threading.active_count()
    with open_sampler(Telemetry(without=("all",)), local_rank=0, gpu_uuid="known",
                      seams=Seams(make_machine(tmp_path))) as sampler:
        sampler.mark()
        sampler.watch(1)
        assert threading.active_count() == threads and sampler.take() == {}


def test_nvml_that_cannot_be_loaded_says_why() -> None:
    def load() -> object:
        raise RuntimeError("NVML cannot be loaded: Driver Not Loaded")

    wanted = Telemetry(rate_hz=10, without=("process", "cpu", "frequency", "energy", "network"))
    with open_sampler(wanted, local_rank=0, gpu_uuid="known", seams=Seams(nvml=load)) as sampler:
        def why() -> str:
            told = sampler.news()
            return told.missing.get("gpu", "") if told else ""

        sampler.mark()
        found: list[str] = []
        until(lambda: found.append(why()) or any(found))
    assert "NVML cannot be loaded: Driver Not Loaded" in found


NO_THREAD = """
import resource
from hpcbench.config.schema import Telemetry
from hpcbench.telemetry.opening import open_sampler
from pathlib import Path
pages = int(Path("/proc/self/statm").read_text().split()[0])
sampler = open_sampler(Telemetry(), local_rank=0, gpu_uuid=None)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**20,) * 2)
with sampler:
    sampler.mark()
    assert sampler.take() == {}
    print(sorted(sampler.news().missing))
"""


def test_a_system_that_gives_no_further_thread_costs_the_readings() -> None:
    done = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout and "process" in done.stdout
