"""Says on rank 0 how far the sweep is: a bar on a terminal, one flushed line per case in a log.

It draws only when a case ends: supervisors must not wake while something is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from hpcbench.plan.case import Case
from hpcbench.report.terminal import open_console
from hpcbench.units import format_seconds

SHOWN_ABOVE_THE_BAR = ("wrong", "failed", "timeout")


class Progress:
    """Progress of the given cases, which are those still to come over all passes and launches.

    A context manager; what it prints goes to ``stream`` (default: standard output as it is now).
    """

    def __init__(
        self, cases: Sequence[Case], stream: TextIO | None = None, *, passes: int = 1,
        launches: int = 1,
    ) -> None:
        """Take the cases to come; nothing is printed yet."""
        self._repeats = (launches, passes)
        self._total = len(cases)
        self._done = 0
        self._left_s = sum(case.estimate_s for case in cases)
        self._measured_s = 0.0
        self._spent_s = 0.0
        self._console = open_console(stream)
        self._bar = Bar(
            MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=self._console, auto_refresh=False, transient=True,
        ) if self._console.is_terminal else None
        self._task = self._bar.add_task("", total=self._total, left="") if self._bar else None

    def __enter__(self) -> Progress:
        """Show the bar."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar:
            self._bar.stop()

    def case_done(
        self, case: Case, status: str, reason: str, seconds: float, launch: int = 0,
        pass_index: int = 0,
    ) -> None:
        """Count one run of a case.

        ``seconds`` is how long all of it took, set-up and checks included; ``launch`` and
        ``pass_index`` count from 0.
        """
        self._done += 1
        self._left_s = max(0.0, self._left_s - case.estimate_s)
        if status != "skipped":
            self._measured_s += case.estimate_s
            self._spent_s += seconds
        place = f"[{self._done:>{len(str(self._total))}}/{self._total}]"
        line = (f"{place} {status:<7} {case.label}  {self._which(launch, pass_index)}"
                f"{format_seconds(seconds)}  {reason}").rstrip()
        if self._bar is None or status in SHOWN_ABOVE_THE_BAR:
            self.message(line)
        if self._bar and self._task is not None:
            self._bar.update(self._task, advance=1, description=case.label, left=self.time_left())
            self._bar.refresh()

    def _which(self, launch: int, pass_index: int) -> str:
        """Return ``launch 1/2 pass 3/3``; nothing of what there is only one."""
        launches, passes = self._repeats
        parts = [f"launch {launch + 1}/{launches}"] if launches > 1 else []
        parts += [f"pass {pass_index + 1}/{passes}"] if passes > 1 else []
        return f"{' '.join(parts)}  " if parts else ""

    def message(self, text: str) -> None:
        """Print one line at once: above the bar, or in the log."""
        self._console.print(Text(text), soft_wrap=True)
        self._console.file.flush()

    def time_left(self) -> str:
        """Return ``about 40 s left``: the plan's estimate of the rest, scaled by what was seen."""
        if not self._measured_s or not self._left_s:
            return ""
        return f"about {format_seconds(self._left_s * self._spent_s / self._measured_s)} left"
