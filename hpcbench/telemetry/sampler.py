"""A rank's readings: begun before the first case, asked for around each, taken between cases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from types import TracebackType

import numpy as np

from hpcbench.telemetry.process import ProcessSource
from hpcbench.telemetry.reader import NowNs, Reader
from hpcbench.telemetry.source import Source
from hpcbench.trace.telemetry import Rows, Told

HANGS_NS = 5 * 10**9
"""A call that takes longer is given up."""
_MOST_HANGS = 3
"""So many calls of one reader are given up, then the reader."""
_WAIT_S = 0.02
"""How long the main thread waits for a reading around a case; it goes on without it."""


class Sampler:
    """A context manager around all cases. Nothing here raises, and nothing takes long.

    ``groups`` are sources that share a thread each, ``missing`` says why others are not there.
    """

    def __init__(
        self, groups: Sequence[Sequence[Source]], rate_hz: float, missing: Mapping[str, str],
        now_ns: NowNs = perf_counter_ns,
    ) -> None:
        self._rate_hz = rate_hz
        self._missing = dict(missing)
        self._told: Told | None = None
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
        """Read of another worker from now on, at once."""
        for source in self._workers:
            source.watch(pid)
        self.mark()

    def mark(self) -> None:
        """Have everything read now: a case begins, or has ended."""
        self._give_up()
        for reader in self._readers:
            reader.ask()
        for reader in self._readers[:1]:  # others may take longer, and have their own times
            reader.wait(_WAIT_S)

    @contextlib.contextmanager
    def only_marks(self, is_on: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002
        """Read nothing in between where ``is_on``: what is timed shares this process."""
        for reader in self._readers:
            reader.read_by_clock(not is_on)
        try:
            yield
        finally:
            for reader in self._readers:
                reader.read_by_clock(True)

    def take(self) -> dict[str, Rows]:
        """Return what was read since the last call, by table."""
        rows: dict[str, list[tuple[int, ...]]] = {}
        for reader in self._readers:
            for table, row in reader.take():
                rows.setdefault(table, []).append(row)
        return {table: np.array(some, dtype=np.int64) for table, some in rows.items()}

    def news(self) -> Told | None:
        """Return what is read and what is not, None if that was returned before."""
        told = Told(self._rate_hz, *self._state())
        if told == self._told:
            return None
        self._told = told
        return replace(told)

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
        """Leave behind what hangs: a column if the source can do without it, else the source."""
        for number, reader in enumerate(self._readers):
            if (hanging := reader.hangs(HANGS_NS)) is None:
                continue
            source, column = hanging
            why = f"reading it did not return within {HANGS_NS / 1e9:g} s"
            self._hangs[number] += 1
            if self._hangs[number] < _MOST_HANGS and source.drop(column, why):
                following = reader.again()
            else:
                self._missing[source.table] = why
                following = reader.without(source)
            self._readers[number] = following
            self._start(following)
