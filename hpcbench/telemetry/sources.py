"""Sources of telemetry: the worker's process, a node's cores, clocks, RAPL and interfaces, GPUs.

A GPU library's call that hangs or is refused costs its column. amdsmi has never run here."""

from __future__ import annotations

import contextlib
import os
import re
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hpcbench.backends import gpus
from hpcbench.measurement.process import KernelFiles, cpu_ticks
from hpcbench.trace.columns import NOT_READ, TABLES

_MOST_BYTES = 65536
Values = Mapping[str, int]
"""Column -> value; a column that is left out was not read."""


class UnreadableError(Exception):
    """Why a source, or a part of it, cannot be read."""


class Source(ABC):
    """Fills one table. ``devices`` are those of its rows, ``missing`` the columns that it cannot
    read."""

    table: ClassVar[str]

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.missing: dict[str, str] = {}

    @abstractmethod
    def read(self, at: Callable[[str], None]) -> Iterable[tuple[int, Values]]:
        """Yield the number of each device with its values now.

        It passes a column's name to ``at`` before a call that may hang for it alone. Raises
        UnreadableError or OSError."""

    def drop(self, column: str, why: str) -> bool:
        """Read a column no more, if the source can be read without it; return whether it can."""
        return False

    def row(self, now_ns: int, device: int, values: Values) -> tuple[int, ...]:
        return (now_ns, device,
                *(values.get(name, NOT_READ) for name in TABLES[self.table].names))


class OpenKernelFile:
    """A file of the kernel that stays open: each reading gets its current text.

    A file of a process stays that process's when its number is reused. It is closed when
    unreferenced: a reader that hangs may still use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._descriptor)

    def text(self) -> str:
        """Return the file, up to _MOST_BYTES, about a page a call. Raises OSError or
        UnreadableError."""
        data = b""
        while len(data) < _MOST_BYTES and (
                part := os.pread(self._descriptor, _MOST_BYTES - len(data), len(data))):
            data += part
        if not data:
            raise UnreadableError(f"{self._path}: is empty")
        return data.decode("ascii", errors="replace")

    def number(self) -> int:
        text = self.text().strip()
        try:
            return int(text)
        except ValueError as error:
            raise UnreadableError(f"{self._path}: {text[:40]!r} is no number") from error


_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of the kernel: the CPU time of all threads of a process, to the ns."""
_AFTER_NAME = {"minor_faults": 7, "major_faults": 9, "rss_pages": 21}
"""Numbers of the words of /proc/PID/stat behind the name, which may have spaces (proc(5))."""


class ProcessSource(Source):
    """CPU time, page faults and memory of the worker; nothing while there is none."""

    table = "process"

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._page_bytes = os.sysconf("SC_PAGESIZE")
        self._now: tuple[int, OpenKernelFile, OpenKernelFile | None] | None = None
        self.devices = ["worker"]
        self._open(os.getpid())  # raises where no process can be read
        self._now = None

    def watch(self, pid: int) -> None:
        """Read another process from now on; one that is gone already is not read."""
        with contextlib.suppress(UnreadableError):
            self._open(pid)

    def _open(self, pid: int) -> None:
        self._now = None
        folder = self._root / "proc" / str(pid)
        stat = OpenKernelFile(folder / "stat")
        try:
            waited: OpenKernelFile | None = OpenKernelFile(folder / "schedstat")
        except UnreadableError as error:
            waited, self.missing["wait_ns"] = None, str(error).replace(str(pid), "PID")
        self._now = (pid, stat, waited)

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        if (now := self._now) is None:
            return
        pid, stat, waited = now
        try:
            fields = stat.text().rpartition(")")[2].split()
            values = {name: int(fields[at_field]) for name, at_field in _AFTER_NAME.items()}
            cpu_ns = time.clock_gettime_ns(~pid << 3 | _CPU_CLOCK)
            wait = {"wait_ns": int(waited.text().split()[1])} if waited is not None else {}
        except (OSError, UnreadableError):  # it has ended
            if self._now is now:  # not another that is watched since
                self._now = None
            return
        yield 0, {"pid": pid, "cpu_ns": cpu_ns, **wait,
                  "rss_bytes": values.pop("rss_pages") * self._page_bytes, **values}


_MOST_CORES = 8
"""So many clocks are read: on some kernels each one interrupts its core."""
_WORD_BYTES = 4
"""InfiniBand counts data in words of 32 bit (IBA, PortXmitData)."""
_IB = "sys/class/infiniband"
_NET = "sys/class/net"
_LOOPBACK = "lo"
_RAPL = "sys/class/powercap"


class CpuSource(Source):
    """The time of all cores by its use, from /proc/stat."""

    table = "cpu"

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._file = OpenKernelFile(root / "proc/stat")
        self._tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
        self.devices = ["all cores"]

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        ticks = cpu_ticks(self._file.text().partition("\n")[0]).get("cpu")
        if ticks is None:
            raise UnreadableError("/proc/stat: its first line is not of all cores")
        of_uses = {"user": ticks.user + ticks.nice,
                   "system": ticks.system + ticks.irq + ticks.softirq,
                   "idle": ticks.idle + ticks.iowait, "steal": ticks.steal}
        yield 0, {f"{use}_ns": count * self._tick_ns for use, count in of_uses.items()}


class FrequencySource(Source):
    """Clocks of some cores, from cpufreq, and how often heat slowed them down."""

    table = "frequency"

    def __init__(self, root: Path, cores: Sequence[int]) -> None:
        super().__init__()
        step = -(-len(cores) // _MOST_CORES)
        below = root / "sys/devices/system/cpu"
        chosen = [below / f"cpu{core}" for core in cores[::max(step, 1)]]
        self._clocks = [OpenKernelFile(core / "cpufreq/scaling_cur_freq") for core in chosen]
        self.devices = ["cores " + ",".join(core.name.removeprefix("cpu") for core in chosen)]
        try:
            self._slowed = [OpenKernelFile(core / "thermal_throttle" / name) for core in chosen
                            for name in ("core_throttle_count", "package_throttle_count")]
        except UnreadableError as error:
            self._slowed, self.missing["throttled"] = [], str(error)

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        clocks = [file.number() for file in self._clocks]
        values = {"lowest_khz": min(clocks), "mean_khz": round(sum(clocks) / len(clocks)),
                  "highest_khz": max(clocks)}
        if self._slowed:
            values["throttled"] = sum(file.number() for file in self._slowed)
        yield 0, values


class EnergySource(Source):
    """RAPL domains, from powercap. A counter that starts anew goes on where it was."""

    table = "energy"

    def __init__(self, root: Path) -> None:
        super().__init__()
        files = KernelFiles(root)
        zones = [name for name in files.names(_RAPL) if re.fullmatch(r"intel-rapl(:\d+)+", name)]
        if not zones:
            raise UnreadableError(f"{root / _RAPL}: no RAPL domain")
        names = {zone: files.line(f"{_RAPL}/{zone}/name") or zone for zone in zones}
        self._files = [OpenKernelFile(root / _RAPL / zone / "energy_uj") for zone in zones]
        self._ranges = [files.number(f"{_RAPL}/{zone}/max_energy_range_uj") or 0
                        for zone in zones]
        self._last: list[int | None] = [None] * len(zones)
        self._total = [0] * len(zones)
        self.devices = [_domain(zone, names) for zone in zones]

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        for number, file in enumerate(self._files):
            now, before = file.number(), self._last[number]
            if before is not None:
                self._total[number] += now - before + self._ranges[number] * (now < before)
            self._last[number] = now
            yield number, {"energy_uj": self._total[number]}


def _domain(zone: str, names: dict[str, str]) -> str:
    """Return ``package-0``, or ``package-0/dram`` of a domain within it."""
    parent = names.get(zone.rpartition(":")[0])
    return f"{parent}/{names[zone]}" if parent else names[zone]


class NetworkSource(Source):
    """Bytes and losses of interfaces, from /proc/net/dev, and of InfiniBand ports.

    A bond, a bridge or a VLAN counts its ports' bytes again, and is left out (`_counts_once`)."""

    table = "network"

    def __init__(self, root: Path) -> None:
        super().__init__()
        files = KernelFiles(root)
        self._files = files
        self._is_counted: dict[str, bool] = {}
        self._file = OpenKernelFile(root / "proc/net/dev")
        self._ports: dict[int, dict[str, OpenKernelFile]] = {}
        for device in files.names(_IB):
            for port in files.names(f"{_IB}/{device}/ports"):
                self._add_port(f"{device}/{port}", root / _IB / device / "ports" / port)

    def _add_port(self, name: str, folder: Path) -> None:
        counters = ("port_rcv_data", "port_xmit_data", "port_xmit_discards", "port_rcv_errors")
        try:
            files = {counter: OpenKernelFile(folder / "counters" / counter) for counter in counters}
        except UnreadableError as error:
            self.missing[name] = str(error)
            return
        self._ports[len(self.devices)] = files
        self.devices.append(name)

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        """Yield each interface, also one that is new, and each port."""
        for line in self._file.text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            fields = [int(field) for field in rest.split()]
            if len(fields) >= 16 and self._counts(name.strip()):
                yield self._number(name.strip()), {
                    "received_bytes": fields[0], "sent_bytes": fields[8],
                    "dropped": fields[3] + fields[11], "errors": fields[2] + fields[10]}
        for number, port in tuple(self._ports.items()):
            try:
                got = {name: file.number() for name, file in port.items()}
            except (OSError, UnreadableError) as error:
                self.missing[self.devices[number]] = str(error)
                del self._ports[number]
                continue
            yield number, {
                "received_bytes": got["port_rcv_data"] * _WORD_BYTES,
                "sent_bytes": got["port_xmit_data"] * _WORD_BYTES,
                "dropped": got["port_xmit_discards"], "errors": got["port_rcv_errors"]}

    def _counts(self, name: str) -> bool:
        if name not in self._is_counted:
            self._is_counted[name] = _counts_once(self._files, name)
        return self._is_counted[name]

    def _number(self, name: str) -> int:
        if name not in self.devices:
            self.devices.append(name)
        return self.devices.index(name)


def _counts_once(files: KernelFiles, name: str) -> bool:
    """Return whether no other interface counts the same bytes.

    True for hardware (``device``), false above others (``lower_*``). The rest (ends of tunnels and
    of containers) count only on the default route, if there is hardware. Interfaces of another
    network namespace than /sys shows count."""
    counters = files.names(f"{_NET}/{name}")
    if name == _LOOPBACK or not counters or "device" in counters:
        return True
    if any(part.startswith("lower_") for part in counters):
        return False
    has_hardware = any(files.exists(f"{_NET}/{one}/device") for one in files.names(_NET))
    return not has_hardware or name in _default_routes(files)


def _default_routes(files: KernelFiles) -> set[str]:
    """Return the interfaces of the default routes of IPv4."""
    lines = (files.text("proc/net/route") or "").splitlines()[1:]
    return {fields[0] for line in lines
            if len(fields := line.split()) > 1 and fields[1] == "00000000"}


class GpuSource(Source):
    """One GPU by NVML, which ``load`` gives, initialised. ``refused`` columns are not read.

    The library is loaded by the first reading, in the thread that reads, because that may hang."""

    table = "gpu"
    library: ClassVar[str] = "NVML"
    columns: ClassVar[Sequence[str]] = gpus.NVML_COLUMNS

    def __init__(
        self, uuid: str, load: Callable[[], Any], refused: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.devices = [uuid]
        self.missing = dict(refused or {})
        self._load = load
        self._refusing: tuple[type[Exception], ...] = ()
        self._reading: Callable[[str], int] | None = None

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        if self._reading is None:
            at("")
            try:
                self._reading = self._opened(self.devices[0])
            except RuntimeError as error:
                raise UnreadableError(str(error)) from error
        values: dict[str, int] = {}
        for column in self.columns:
            if column in self.missing:
                continue
            at(column)
            try:
                values[column] = self._reading(column)
            except self._refusing as error:
                self.missing.setdefault(column, self._message(error))
        if not values:
            raise UnreadableError(f"{self.library} has no reading of this GPU")
        yield 0, values

    def drop(self, column: str, why: str) -> bool:
        self.missing[column] = why
        return bool(column)

    def _opened(self, uuid: str) -> Callable[[str], int]:
        """Set ``_refusing``; return a reader of columns. Raises UnreadableError or RuntimeError."""
        nvml = self._load()
        self._refusing = gpus.nvml_refusing(nvml)
        try:
            readings = gpus.GpuReadings(nvml, uuid)
        except self._refusing as error:
            problem = f"NVML does not know GPU {uuid}: {gpus.refusal(error)}"
            raise UnreadableError(problem) from error
        self.devices = [readings.name]
        return readings.read

    def _message(self, error: Exception) -> str:
        return gpus.refusal(error)


class AmdGpuSource(GpuSource):
    """One GPU by amdsmi. Raises UnreadableError where that is not installed."""

    library = "amdsmi"
    columns = tuple(gpus.AMD_CALLS)

    def __init__(self, uuid: str, refused: Mapping[str, str] | None = None) -> None:
        if not gpus.amdsmi_is_installed():
            raise UnreadableError("a GPU of AMD needs the Python package amdsmi (of ROCm), which "
                                  "is not installed")
        others = (name for name in TABLES["gpu"].names if name not in gpus.AMD_CALLS)
        super().__init__(uuid, lambda: gpus.opened_amd_gpu(uuid), {
            **dict.fromkeys(others, "not read of AMD's GPUs"), **(refused or {})})

    def _opened(self, uuid: str) -> Callable[[str], int]:
        amdsmi, gpu = self._load()
        self._refusing = gpus.amd_refusing(amdsmi)
        return lambda column: gpus.AMD_CALLS[column](amdsmi, gpu)

    def _message(self, error: Exception) -> str:
        return gpus.amd_refusal(error)
