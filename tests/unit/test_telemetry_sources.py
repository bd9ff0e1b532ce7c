"""Sources of readings, and the thread that reads: past what raises and what hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_machine import RAPL_RANGE_UJ, make_machine, net_dev, stat_line, write
from hpcbench.backends.gpus import NVML_CALLS, XID, NvmlRefusals, load_nvml
from hpcbench.config import axes as names
from hpcbench.config.schema import Telemetry
from hpcbench.telemetry import sampler as sampler_module
from hpcbench.telemetry.sampler import Sampler, TelemetryAccess, open_sampler
from hpcbench.telemetry.sources import (
    CpuSource,
    EnergySource,
    FrequencySource,
    GpuSource,
    NetworkSource,
    OpenKernelFile,
    ProcessSource,
    Source,
    UnreadableError,
    Values,
)
from hpcbench.trace.columns import KEYS, NOT_READ, TABLES, Rows, TelemetryReport
from nvml_standins import Standins


def read(source: Source) -> dict[str, Values]:
    return {source.devices[device]: values for device, values in source.read(lambda column: None)}


def test_the_tables_are_those_that_the_sweep_file_names() -> None:
    assert tuple(TABLES) == names.TELEMETRY
    assert (*NVML_CALLS, XID) == TABLES["gpu"].names


def test_cores_of_the_node(tmp_path: Path) -> None:
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    assert read(CpuSource(make_machine(tmp_path))) == {"all cores": {
        "user_ns": 120 * tick_ns, "system_ns": 43 * tick_ns, "idle_ns": 450 * tick_ns,
        "steal_ns": 8 * tick_ns}}


def test_clocks_of_cores(tmp_path: Path) -> None:
    source = FrequencySource(make_machine(tmp_path), [0, 1])
    expected = {"lowest_khz": 2_000_000, "mean_khz": 2_500_000, "highest_khz": 3_000_000}
    assert read(source) == {"cores 0,1": {**expected, "throttled": 6}} and not source.missing


def test_clocks_without_counts_of_heat(tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    (root / "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count").unlink()
    source = FrequencySource(root, [0, 1])
    assert "throttled" not in read(source)["cores 0,1"]
    assert "No such file" in source.missing["throttled"]


def test_at_most_eight_clocks_are_read(tmp_path: Path) -> None:
    for core in range(100):
        write(tmp_path, f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", core)
    source = FrequencySource(tmp_path, range(100))
    assert source.devices == ["cores 0,13,26,39,52,65,78,91"]


def test_energy_goes_on_when_its_counter_begins_anew(tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    source = EnergySource(root)
    assert read(source) == {"package-0": {"energy_uj": 0}, "package-0/dram": {"energy_uj": 0}}
    zone = "sys/class/powercap/intel-rapl:0"
    for value, total in ((RAPL_RANGE_UJ - 10, RAPL_RANGE_UJ - 1010), (90, RAPL_RANGE_UJ - 910)):
        write(root, f"{zone}/energy_uj", value)
        assert read(source)["package-0"] == {"energy_uj": total}


def test_interfaces_and_ports(tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    source = NetworkSource(root)
    assert read(source) == {
        "lo": {"received_bytes": 2000, "sent_bytes": 1000, "dropped": 7, "errors": 11},
        "eth0": {"received_bytes": 1000, "sent_bytes": 500, "dropped": 7, "errors": 11},
        "mlx5_0/1": {"received_bytes": 40, "sent_bytes": 80, "dropped": 1, "errors": 2}}
    write(root, "proc/net/dev", net_dev(lo=1, new=2))  # one went, one came
    assert read(source).keys() == {"lo", "new", "mlx5_0/1"}
    assert source.devices == ["mlx5_0/1", "lo", "eth0", "new"]


def interface(root: Path, name: str, *parts: str) -> None:
    for part in ("mtu", *parts):
        write(root, f"sys/class/net/{name}/{part}", "1")


def test_bytes_count_once_where_interfaces_lie_above_others(tmp_path: Path) -> None:
    """A bond of two ports, a bridge of containers and a tunnel; what came later is unknown."""
    root = make_machine(tmp_path)
    for name, parts in {
            "eth0": ("device/id",), "eth1": ("device/id",), "lo": (), "br0": ("lower_v",),
            "bond0": ("lower_eth0/mtu", "lower_eth1/mtu"), "v": (), "tun0": ()}.items():
        interface(root, name, *parts)
    write(root, "proc/net/dev", net_dev(**dict.fromkeys(
        ("lo", "eth0", "eth1", "bond0", "br0", "v", "tun0", "new"), 1)))
    assert {*read(NetworkSource(root))} == {"lo", "eth0", "eth1", "new", "mlx5_0/1"}


def test_what_leads_out_of_a_container_counts_beside_ports_of_its_own(tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    for name, parts in {"lo": (), "eth0": (), "net1": ("device/id",), "vlan5": ("lower_eth0",),
                        "tun0": ()}.items():
        interface(root, name, *parts)
    write(root, "proc/net/dev", net_dev(lo=1, eth0=1, net1=1, vlan5=1, tun0=1))
    write(root, "proc/net/route", "Iface\tDestination\tGateway\n"
          "eth0\t00000000\t0100000A\nnet1\t0000000A\t00000000\n")
    assert {*read(NetworkSource(root))} == {"lo", "eth0", "net1", "mlx5_0/1"}
    (root / "sys/class/net/net1/device/id").unlink()
    (root / "sys/class/net/net1/device").rmdir()  # no port at all: all that lie above no other
    assert {*read(NetworkSource(root))} == {"lo", "eth0", "net1", "tun0", "mlx5_0/1"}


def test_the_worker(tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    source = ProcessSource(root)
    assert read(source) == {}  # none yet
    source.watch(os.getpid())
    values = dict(read(source)["worker"])
    assert values.pop("cpu_ns") > 0
    assert values == {"pid": os.getpid(), "wait_ns": 222, "minor_faults": 7, "major_faults": 9,
                      "rss_bytes": 21 * os.sysconf("SC_PAGESIZE")}
    write(root, f"proc/{os.getpid()}/stat", stat_line(minor=70))
    assert read(source)["worker"]["minor_faults"] == 70
    source.watch(2**22 + 1)  # gone before it could be looked at
    assert read(source) == {}


def test_a_real_process() -> None:
    source = ProcessSource(Path("/"))
    source.watch(os.getpid())
    before = read(source)["worker"]
    assert sum(range(300_000)) > 0
    after = read(source)["worker"]
    assert before["cpu_ns"] < after["cpu_ns"] < before["cpu_ns"] + 10**9
    assert before["minor_faults"] <= after["minor_faults"] and after["rss_bytes"] > 10**6


@pytest.mark.parametrize(("make", "message"), [
    (lambda root: CpuSource(root), r"proc/stat: No such file"),
    (lambda root: FrequencySource(root, [0]), r"cpu0/cpufreq/scaling_cur_freq: No such file"),
    (lambda root: EnergySource(root), r"powercap: no RAPL domain"),
    (lambda root: NetworkSource(root), r"proc/net/dev: No such file"),
    (lambda root: ProcessSource(root), r"proc/\d+/stat: No such file"),
])
def test_what_is_not_there_is_an_error(tmp_path: Path, make: object, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        make(tmp_path)  # type: ignore[operator]


def test_energy_that_only_root_may_read(tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    energy = root / "sys/class/powercap/intel-rapl:0/energy_uj"
    energy.unlink()
    energy.symlink_to(energy.name)  # nobody can open it, not even root
    with pytest.raises(UnreadableError, match=r"intel-rapl:0/energy_uj: .*symbolic links"):
        EnergySource(root)


@pytest.mark.parametrize(("path", "text"), [
    ("proc/stat", "intr 1 2 3"), ("proc/stat", "cpu a b c d e f g h"), ("proc/net/dev", "\n\nlo:x"),
    ("sys/class/powercap/intel-rapl:0/energy_uj", "much")])
def test_what_is_no_number_is_an_error(tmp_path: Path, path: str, text: str) -> None:
    root = make_machine(tmp_path)
    sources = {"proc/stat": CpuSource, "proc/net/dev": NetworkSource}
    source = sources.get(path, EnergySource)(root)
    write(root, path, text)
    with pytest.raises((UnreadableError, ValueError)):
        read(source)


GPU = "00000000-1111-2222-3333-444444440000"
"""The UUID of the first GPU of each machine (tests/data/nvml_standin.c)."""


def read_gpu(
    standins: Standins, machine: str, uuid: str = GPU, refused: dict[str, str] | None = None,
) -> Any:
    """Return the name of what is read, its values at the first and second reading, and refusals."""
    def ask() -> list[Any]:
        source = GpuSource(uuid, load_nvml, refused)
        first, second = (next(iter(read(source).values())) for _ in range(2))
        return [source.devices, first, second, source.missing]

    return standins.ask(machine, ask)


def test_a_gpu_reports_what_it_can(standins: Standins) -> None:
    devices, first, second, missing = read_gpu(standins, "h100")
    assert devices == [GPU] and second.pop("energy_mj") - first.pop("energy_mj") == 100
    assert first == second == {
        "power_mw": 250_000, "sm_mhz": 1400, "memory_mhz": 2619, "celsius": 35,
        "throttle_reasons": 0x45, "gpu_percent": 90, "memory_percent": 40,
        "memory_used_bytes": 2**30, "nvlink_sent_bytes": 3072, "nvlink_received_bytes": 4096,
        "pcie_sent_bytes": 500, "ecc_corrected": 0, "ecc_uncorrected": 1, "xid": 0}
    assert missing == {"pcie_received_bytes": "Not Supported"}
    assert read_gpu(standins, "xid")[1]["xid"] == 79


def test_an_old_driver_has_older_names_and_no_event_of_today(standins: Standins) -> None:
    _, first, _, missing = read_gpu(standins, "old")
    assert first["throttle_reasons"] == 0x45
    assert missing["xid"] == "Function Not Found"


def test_a_mig_device_has_its_own_memory_and_its_gpu_s_clocks_and_power(
    standins: Standins,
) -> None:
    """What counts up of the whole GPU would be counted once for each part of it."""
    part = "00000000-1111-2222-3333-444444440002"
    devices, first, _, missing = read_gpu(standins, "mig", part)
    assert devices == [f"{part} of GPU-{GPU}"]
    assert first == {"power_mw": 250_000, "sm_mhz": 1400, "memory_mhz": 2619, "celsius": 35,
                     "throttle_reasons": 0x45, "memory_used_bytes": 2**28, "xid": 0}
    assert {*missing} == {*NVML_CALLS} - {*first}


def test_what_was_refused_before_is_not_asked_for(standins: Standins) -> None:
    """This machine hangs in the call."""
    _, first, _, missing = read_gpu(
        standins, "telemetry_sleeps", refused={"celsius": "Not Supported"})
    assert "celsius" not in first and missing["celsius"] == "Not Supported"


def test_a_gpu_that_nvml_does_not_know(standins: Standins) -> None:
    for machine in ("h100", "garbled", "none"):
        answers = standins.answers(machine, lambda: read(GpuSource("other", load_nvml)).items())
        assert "does not know GPU other: Not Found" in str(answers.lost)


def test_a_gpu_that_reports_nothing(standins: Standins) -> None:
    answers = standins.answers("denied", lambda: read(GpuSource(GPU, load_nvml)).items())
    assert "of this GPU" in str(answers.lost)


def test_what_was_not_read_stands_as_such(tmp_path: Path) -> None:
    root = make_machine(tmp_path)
    source = ProcessSource(root)
    row = source.row(5, 0, {"pid": 1, "cpu_ns": 2})
    columns: Iterable[str] = (*KEYS, *TABLES["process"].names)
    named = dict(zip(columns, row, strict=True))
    assert named["time_ns"] == 5 and named["wait_ns"] == NOT_READ
    assert re.fullmatch("[a-z_]+", "".join(columns))


def test_a_file_of_several_pages_is_read_to_its_end() -> None:
    """The kernel gives about a page of such a file at a time."""
    text = OpenKernelFile(Path("/proc/self/smaps")).text()
    assert len(text) > 8192


def test_a_port_that_cannot_be_read_costs_itself_only(tmp_path: Path) -> None:
    make_machine(tmp_path)
    source = NetworkSource(tmp_path)
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    (counters / "port_rcv_data").write_text("N/A (no PMA)\n")
    found = {source.devices[number] for number, _ in source.read(lambda _: None)}
    assert "mlx5_0/1" not in found and found
    assert "is no number" in source.missing["mlx5_0/1"]


FAST = Telemetry(rate_hz=10)
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


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
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
            time.sleep(0.5)  # a reading by the clock that had begun is over
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
    monkeypatch.setattr(sampler_module, "HANGS_NS", 5 * 10**8)
    hanging, sound = Counting(), Counting()
    sound.table = "network"  # type: ignore[misc]
    hanging.hang = threading.Event()
    with Sampler([[hanging, sound]], 10, {}) as sampler:
        until(lambda: hanging.count)
        began = time.monotonic()
        sampler.mark()
        assert time.monotonic() - began < 10  # nobody waits for it
        time.sleep(0.6)
        sampler.mark()
        until(lambda: sound.count > 2)
        told = sampler.new_report()
        hanging.hang.set()  # it comes back late: nobody wants its rows
        time.sleep(0.05)
        assert set(sampler.drain()) == {"network"} and hanging.count == 1
    assert told is not None and told.missing == {"cpu": "reading it did not return within 0.5 s"}


def gpu_alone(
    standins: Standins, machine: str, over: Callable[[TelemetryReport | None, int], bool],
) -> Any:
    """Return what is told at the end, and a row, of a sampler that reads but a GPU of a machine.

    ``over`` says whether it is the end, from what is new and how many rows there are.
    """
    wanted = Telemetry(rate_hz=10, without=("process", "cpu", "frequency", "energy", "network"))

    def ask() -> list[Any]:
        sampler_module.HANGS_NS = 5 * 10**8
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
    assert told["missing"]["gpu.celsius"] == "reading it did not return within 0.5 s"
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
