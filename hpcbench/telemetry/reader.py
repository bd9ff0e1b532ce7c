"""A thread that reads sources at moments of the clock, and when it is asked to.

It is one thread for sources that hang or raise together. It never keeps the main thread waiting,
takes no signal, and ends with the process, also inside a call that never returns.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence

from hpcbench.telemetry.source import Source, UnreadableError

NowNs = Callable[[], int]
Row = tuple[str, tuple[int, ...]]
"""Table, and a row of it."""


class _AbandonedError(Exception):
    """A call returned after all, when nobody waited for it any more."""


class Reader:
    """Reads sources every ``period_ns``, at multiples of it, so that ranks of a node wake at once.

    Wakes that come together disturb fewer samples than those that follow one another.
    """

    def __init__(self, sources: Sequence[Source], period_ns: int, now_ns: NowNs) -> None:
        self.sources = list(sources)
        self.lost: dict[str, str] = {}
        """Tables that are read no more, and why."""
        self._period_ns = period_ns
        self._now_ns = now_ns
        self._rows: deque[Row] = deque()
        self._asked, self._done = threading.Event(), threading.Event()
        self._is_over, self._by_clock = False, True
        self._busy: tuple[Source, str, int] | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def ask(self) -> None:
        """Have everything read now; `wait` for it, or find it among later rows."""
        self._done.clear()
        self._asked.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until what was asked for is read; return whether it is."""
        return self._thread.is_alive() and self._done.wait(timeout_s)

    def read_by_clock(self, is_on: bool) -> None:  # noqa: FBT001
        """Read at moments of the clock, too, from now on; or only when asked."""
        if is_on and not self._by_clock:
            self._asked.set()
        self._by_clock = is_on

    def end(self) -> None:
        """Read no more; what hangs is left behind."""
        self._is_over = True
        self._asked.set()

    def take(self) -> list[Row]:
        """Return the rows that were read since the last call."""
        return [self._rows.popleft() for _ in range(len(self._rows))]

    def hangs(self, after_ns: int) -> tuple[Source, str] | None:
        """Return the source and the column whose reading takes longer than that, or None."""
        busy = self._busy
        if busy is None or self._now_ns() - busy[2] < after_ns:
            return None
        return busy[:2]

    def without(self, source: Source) -> Reader:
        """Return a new reader of the other sources, and leave this one behind."""
        return self._next([one for one in self.sources if one is not source])

    def again(self) -> Reader:
        """Return a new reader of the same sources, and leave this one behind."""
        return self._next(self.sources)

    def _next(self, sources: Sequence[Source]) -> Reader:
        self.end()
        following = Reader(sources, self._period_ns, self._now_ns)
        following.lost, following._rows = self.lost, self._rows
        following._by_clock = self._by_clock
        return following

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._is_over:
            self._asked.wait(self._pause_s())
            is_asked = self._asked.is_set()
            self._asked.clear()
            if self._is_over:
                return
            if is_asked or self._by_clock:
                try:
                    self._read_all()
                except _AbandonedError:
                    return
            if is_asked:
                self._done.set()

    def _pause_s(self) -> float | None:
        """Return how long it is to the next multiple of the period; None: until it is asked."""
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
