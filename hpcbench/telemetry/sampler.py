"""A rank's telemetry: read by threads at fixed times and around each case, taken between cases.

Sources that may hang together share a thread, which never keeps the main thread waiting, takes no
signal, and ends with the process, also inside a call that never returns."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any

import numpy as np

from hpcbench.backends.gpus import NvmlRefusals, load_nvml
from hpcbench.config.schema import Telemetry
from hpcbench.measurement.process import own_cores
from hpcbench.telemetry.sources import (
    AmdGpuSource,
    CpuSource,
    EnergySource,
    FrequencySource,
    GpuSource,
    NetworkSource,
    ProcessSource,
    Source,
    UnreadableError,
)
from hpcbench.trace.columns import BY_NODE, TABLES, Rows, TelemetryReport

NowNs = Callable[[], int]
Row = tuple[str, tuple[int, ...]]
"""Table, and a row of it."""


class _AbandonedError(Exception):
    """A call returned after all, when nobody waited for it any more."""


class Reader:
    """Reads sources at multiples of ``period_ns``: ranks of a node wake together, which disturbs
    fewer samples."""

    def __init__(self, sources: Sequence[Source], period_ns: int, now_ns: NowNs) -> None:
        self.sources = list(sources)
        self.lost: dict[str, str] = {}
        """Tables that are read no more, and why."""
        self._period_ns = period_ns
        self._now_ns = now_ns
        self._rows: deque[Row] = deque()
        self._requested, self._done = threading.Event(), threading.Event()
        self._is_over, self._by_clock = False, True
        self._busy: tuple[Source, str, int] | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request(self) -> None:
        """Have everything read now; `wait` for it, or find it among later rows."""
        self._done.clear()
        self._requested.set()

    def wait(self, timeout_s: float) -> bool:
        return self._thread.is_alive() and self._done.wait(timeout_s)

    def read_by_clock(self, is_on: bool) -> None:  # noqa: FBT001
        """Read at fixed times, too, from now on; or only on request."""
        if is_on and not self._by_clock:
            self._requested.set()
        self._by_clock = is_on

    def end(self) -> None:
        self._is_over = True
        self._requested.set()

    def drain(self) -> list[Row]:
        return [self._rows.popleft() for _ in range(len(self._rows))]

    def hangs(self, after_ns: int) -> tuple[Source, str] | None:
        """Return the source and the column whose reading takes longer than that, or None."""
        busy = self._busy
        if busy is None or self._now_ns() - busy[2] < after_ns:
            return None
        return busy[:2]

    def followed_by(self, sources: Sequence[Source]) -> Reader:
        """Return a new reader of these sources, and leave this one behind."""
        self.end()
        following = Reader(sources, self._period_ns, self._now_ns)
        following.lost, following._rows = self.lost, self._rows
        following._by_clock = self._by_clock
        return following

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._is_over:
            self._requested.wait(self._pause_s())
            is_requested = self._requested.is_set()
            self._requested.clear()
            if self._is_over:
                return
            if is_requested or self._by_clock:
                try:
                    self._read_all()
                except _AbandonedError:
                    return
            if is_requested:
                self._done.set()

    def _pause_s(self) -> float | None:
        """Return how long it is to the next multiple of the period; None: until a request."""
        if not self._by_clock:
            return None
        return (self._period_ns - self._now_ns() % self._period_ns) / 1e9

    def _read_all(self) -> None:
        for source in tuple(self.sources):
            try:
                self._read(source)
            except (UnreadableError, OSError, ValueError, LookupError, ArithmeticError) as error:
                self._lose(source, str(error) or type(error).__name__)
            finally:
                self._busy = None

    def _read(self, source: Source) -> None:
        now_ns = self._now_ns()

        def at(column: str) -> None:
            if self._is_over:
                raise _AbandonedError
            self._busy = (source, column, self._now_ns())

        at("")
        rows = [source.row(now_ns, device, values) for device, values in source.read(at)]
        if self._is_over:
            raise _AbandonedError
        self._rows.extend((source.table, row) for row in rows)

    def _lose(self, source: Source, why: str) -> None:
        self.lost[source.table] = why
        self.sources.remove(source)


HANGS_NS = 5 * 10**9
"""A call that takes longer is given up."""
_MOST_HANGS = 3
"""So many calls of one reader are given up, then the reader."""
_WAIT_S = 0.02
"""How long the main thread waits for a reading around a case; it goes on without it."""


class Sampler:
    """A context manager around all cases. Nothing here raises, and nothing takes long.

    ``groups`` are sources that share a thread each, ``missing`` the reasons of other tables."""

    def __init__(
        self, groups: Sequence[Sequence[Source]], rate_hz: float, missing: Mapping[str, str],
        now_ns: NowNs = perf_counter_ns,
    ) -> None:
        self._rate_hz = rate_hz
        self._missing = dict(missing)
        self._status: TelemetryReport | None = None
        self._readers = [Reader(group, round(10**9 / rate_hz), now_ns)
                         for group in groups if group]
        self._hangs = [0] * len(self._readers)
        self._workers = [source for group in groups for source in group
                         if isinstance(source, ProcessSource)]

    def __enter__(self) -> Sampler:
        for reader in self._readers:
            self._start(reader)
        return self

    def _start(self, reader: Reader) -> None:
        try:
            reader.start()
        except RuntimeError as error:  # the system gives no further thread
            self._missing |= dict.fromkeys((source.table for source in reader.sources), str(error))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for reader in self._readers:
            reader.end()

    def watch(self, pid: int) -> None:
        for source in self._workers:
            source.watch(pid)
        self.mark()

    def mark(self) -> None:
        """Have everything read now: a case begins, or has ended."""
        self._give_up()
        for reader in self._readers:
            reader.request()
        for reader in self._readers[:1]:  # others may take longer, and have their own times
            reader.wait(_WAIT_S)

    @contextlib.contextmanager
    def only_marks(self, is_on: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002
        """Read nothing in between where ``is_on``: the timed work shares this process."""
        for reader in self._readers:
            reader.read_by_clock(not is_on)
        try:
            yield
        finally:
            for reader in self._readers:
                reader.read_by_clock(True)

    def drain(self) -> dict[str, Rows]:
        rows: dict[str, list[tuple[int, ...]]] = {}
        for reader in self._readers:
            for table, row in reader.drain():
                rows.setdefault(table, []).append(row)
        return {table: np.array(some, dtype=np.int64) for table, some in rows.items()}

    def new_report(self) -> TelemetryReport | None:
        """Return the report of what is read and what is not, None if unchanged."""
        status = TelemetryReport(self._rate_hz, *self._state())
        if status == self._status:
            return None
        self._status = status
        return replace(status)

    def _state(self) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        devices: dict[str, tuple[str, ...]] = {}
        missing = dict(self._missing)
        for reader in self._readers:
            missing |= reader.lost
            for source in reader.sources:
                devices[source.table] = tuple(source.devices)
                missing |= {f"{source.table}.{name}": why
                            for name, why in dict(source.missing).items()}
        return devices, missing

    def _give_up(self) -> None:
        """Give up a hanging reading: a column if the source can do without it, else the source."""
        for number, reader in enumerate(self._readers):
            if (hanging := reader.hangs(HANGS_NS)) is None:
                continue
            source, column = hanging
            why = f"reading it did not return within {HANGS_NS / 1e9:g} s"
            self._hangs[number] += 1
            if self._hangs[number] < _MOST_HANGS and source.drop(column, why):
                following = reader.followed_by(reader.sources)
            else:
                self._missing[source.table] = why
                following = reader.followed_by(
                    [one for one in reader.sources if one is not source])
            self._readers[number] = following
            self._start(following)


@dataclass(frozen=True, slots=True)
class TelemetryAccess:
    """Where the machine is read: the root of /proc and /sys, and the loader of NVML."""

    root: Path = Path("/")
    nvml: Callable[[], Any] = load_nvml


def open_sampler(
    wanted: Telemetry, *, local_rank: int, gpu_uuid: str | None, rocm: bool = False,
    tried: NvmlRefusals | None = None, access: TelemetryAccess | None = None,
) -> Sampler:
    """Return the sampler of a rank; ``gpu_uuid`` is that of its GPU, or None.

    ``rocm``: an AMD GPU. ``tried``: the findings of the probe's child about NVML or amdsmi."""
    access = access or TelemetryAccess()
    openers: Mapping[str, Callable[[], Source]] = {
        "process": lambda: ProcessSource(access.root),
        "cpu": lambda: CpuSource(access.root),
        "frequency": lambda: FrequencySource(access.root, own_cores()),
        "energy": lambda: EnergySource(access.root),
        "network": lambda: NetworkSource(access.root),
        "gpu": lambda: _gpu(gpu_uuid, tried or NvmlRefusals(), access.nvml, rocm)}
    sources: dict[str, Source] = {}
    missing: dict[str, str] = {}
    for table, opener in openers.items():
        if TABLES[table].by == BY_NODE and local_rank:
            continue
        if {table, "all"} & {*wanted.without}:
            missing[table] = "not wanted (telemetry.without)"
            continue
        try:
            sources[table] = opener()
        except (UnreadableError, OSError) as error:
            missing[table] = str(error)
    gpus = [sources.pop("gpu")] if "gpu" in sources else []
    return Sampler([[*sources.values()], gpus], wanted.rate_hz, missing)


def _gpu(uuid: str | None, tried: NvmlRefusals, load: Callable[[], Any], rocm: bool) -> Source:
    if uuid is None:
        raise UnreadableError("torch reports no UUID of the GPU" if rocm else
                              "this rank has no NVIDIA GPU")
    if tried.lost:  # a library that crashed or hung in the probe would take the supervisor along
        raise UnreadableError(tried.lost)
    return AmdGpuSource(uuid, tried.refused) if rocm else GpuSource(uuid, load, tried.refused)
