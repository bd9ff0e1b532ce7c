"""The thread that reads: by the clock and when asked, past what raises and what hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_machine import make_machine
from hpcbench.backends.gpus import NvmlRefusals
from hpcbench.config.schema import Telemetry
from hpcbench.telemetry import sampler as sampler_module
from hpcbench.telemetry.sampler import Sampler, TelemetryAccess, open_sampler
from hpcbench.telemetry.sources import Source, UnreadableError, Values
from hpcbench.trace.columns import TABLES, Rows, TelemetryReport
from nvml_standins import Standins

FAST = Telemetry(rate_hz=10)
GPU = "00000000-1111-2222-3333-444444440000"
"""The UUID of the first GPU of each machine (tests/data/nvml_standin.c)."""


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
        rows = sampler.drain()["cpu"]
    assert rows.shape[1] == 2 + len(TABLES["cpu"].names)
    assert rows[:, 2].tolist() == [*range(1, len(rows) + 1)]
    assert (rows[1:, 0] > rows[:-1, 0]).all() and not sampler.drain().get("nothing")
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
        told = sampler.new_report()
    assert told == TelemetryReport(10, {"network": ("all cores",)}, {"cpu": "its file went"})
    assert sampler.new_report() is None


def test_a_source_that_hangs_costs_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "HANGS_NS", 10**8)
    hanging, sound = Counting(), Counting()
    sound.table = "network"  # type: ignore[misc]
    hanging.hang = threading.Event()
    with Sampler([[hanging, sound]], 10, {}) as sampler:
        until(lambda: hanging.count)
        began = time.monotonic()
        sampler.mark()
        assert time.monotonic() - began < 10  # nobody waits for it
        time.sleep(0.15)
        sampler.mark()
        until(lambda: sound.count > 2)
        told = sampler.new_report()
        hanging.hang.set()  # it comes back late: nobody wants its rows
        time.sleep(0.05)
        assert set(sampler.drain()) == {"network"} and hanging.count == 1
    assert told is not None and told.missing == {"cpu": "reading it did not return within 0.1 s"}


def gpu_alone(
    standins: Standins, machine: str, over: Callable[[TelemetryReport | None, int], bool],
) -> Any:
    """Return what is told at the end, and a row, of a sampler that reads but a GPU of a machine.

    ``over`` says whether it is the end, from what is new and how many rows there are.
    """
    wanted = Telemetry(rate_hz=10, without=("process", "cpu", "frequency", "energy", "network"))

    def ask() -> list[Any]:
        sampler_module.HANGS_NS = 10**8
        rows: list[Rows] = []
        told: TelemetryReport | None = None
        with open_sampler(wanted, local_rank=0, gpu_uuid=GPU) as sampler:
            def ends() -> bool:
                nonlocal told
                sampler.mark()
                rows.extend(sampler.drain().values())
                told = sampler.new_report() or told
                return over(told, len(rows))

            until(ends)
        return [told.to_json(), rows[0][0, 2:].tolist() if rows else None]

    return standins.ask(machine, ask)


def test_a_call_of_nvml_that_hangs_costs_its_column(standins: Standins) -> None:
    told, row = gpu_alone(standins, "telemetry_sleeps", lambda _, rows: bool(rows))
    assert told["devices"] == {"gpu": [GPU]}
    assert told["missing"]["gpu.celsius"] == "reading it did not return within 0.1 s"
    columns = dict(zip(TABLES["gpu"].names, row, strict=True))
    assert (columns["power_mw"], columns["celsius"], columns["sm_mhz"]) == (250_000, -1, 1400)


def test_a_driver_in_which_all_hangs_costs_its_table(standins: Standins) -> None:
    def is_given_up(told: TelemetryReport | None, _: int) -> bool:
        return told is not None and "gpu" in told.missing

    told, row = gpu_alone(standins, "telemetry_hangs", is_given_up)
    assert row is None and "did not return" in told["missing"]["gpu"]


def test_what_crashed_before_is_not_loaded(standins: Standins) -> None:
    """This machine would end the process as soon as it is asked."""
    def ask() -> list[Any]:
        with open_sampler(FAST, local_rank=0, gpu_uuid=GPU,
                          tried=NvmlRefusals("it crashed")) as sampler:
            sampler.mark()
            until(lambda: sampler.drain().get("cpu") is not None)
            told = sampler.new_report()
        return [told and told.missing["gpu"]]

    assert standins.ask("start_crashes", ask) == ["it crashed"]


def test_a_rank_reads_what_is_its_own(tmp_path: Path) -> None:
    seams = TelemetryAccess(make_machine(tmp_path))
    first = open_sampler(FAST, local_rank=0, gpu_uuid="known", access=seams).new_report()
    other = open_sampler(FAST, local_rank=1, gpu_uuid=None, access=seams).new_report()
    assert first is not None and other is not None
    assert first.devices.keys() == TABLES.keys() and not first.missing
    assert other == TelemetryReport(
        10, {"process": ("worker",)}, {"gpu": "this rank has no NVIDIA GPU"})


def test_what_cannot_be_read_or_is_not_wanted_states_why(tmp_path: Path) -> None:
    root = make_machine(tmp_path, rapl=False, cpufreq=False)
    wanted = Telemetry(rate_hz=10, without=("network",))
    told = open_sampler(wanted, local_rank=0, gpu_uuid=None,
                        access=TelemetryAccess(root)).new_report()
    assert told is not None and told.devices.keys() == {"process", "cpu"}
    assert told.missing["energy"].endswith("powercap: no RAPL domain")
    assert told.missing["frequency"].endswith("scaling_cur_freq: No such file or directory")
    assert told.missing["network"] == "not wanted (telemetry.without)"


def test_nothing_is_read_where_nothing_is_wanted(tmp_path: Path) -> None:
    threads = threading.active_count()
    with open_sampler(Telemetry(without=("all",)), local_rank=0, gpu_uuid="known",
                      access=TelemetryAccess(make_machine(tmp_path))) as sampler:
        sampler.mark()
        sampler.watch(1)
        assert threading.active_count() == threads and sampler.drain() == {}


def test_nvml_that_cannot_be_loaded_states_why() -> None:
    def load() -> object:
        raise RuntimeError("NVML cannot be loaded: Driver Not Loaded")

    wanted = Telemetry(rate_hz=10, without=("process", "cpu", "frequency", "energy", "network"))
    with open_sampler(wanted, local_rank=0, gpu_uuid="known",
                      access=TelemetryAccess(nvml=load)) as sampler:
        def why() -> str:
            told = sampler.new_report()
            return told.missing.get("gpu", "") if told else ""

        sampler.mark()
        found: list[str] = []
        until(lambda: found.append(why()) or any(found))
    assert "NVML cannot be loaded: Driver Not Loaded" in found


NO_THREAD = """
import resource
from hpcbench.config.schema import Telemetry
from hpcbench.telemetry.sampler import open_sampler
from pathlib import Path
pages = int(Path("/proc/self/statm").read_text().split()[0])
sampler = open_sampler(Telemetry(), local_rank=0, gpu_uuid=None)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**20,) * 2)
with sampler:
    sampler.mark()
    assert sampler.drain() == {}
    print(sorted(sampler.new_report().missing))
"""


def test_a_system_that_gives_no_further_thread_costs_the_readings() -> None:
    done = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout and "process" in done.stdout
