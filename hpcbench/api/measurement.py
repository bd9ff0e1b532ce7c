"""The result of `hpcbench.measure`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from hpcbench.units import format_seconds, plural, three_digits, to_gb_per_s

_SHOWN_RANKS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Times of a function over a group of ranks; the same on all of them, rates apart.

    Attributes:
        name: of the function.
        median: median time of a call in s, from the first rank's start to the last one's end.
        interval: ends of the median's 95 % interval in s; None without a reliable one (``flags``).
        times: (sample,) s, of the samples that count.
        samples: (rank, sample) s, the time of each rank in the same samples.
        per_rank: median of each rank in s, from its own start to its own end.
        skew: median in s from the first rank's end to the last one's; None without a common clock.
        bandwidth: B/s, by the ``bytes`` of a call; None without them.
        tflops: 1e12 operations/s, by the ``flops`` of a call; None without them.
        checked: whether results were checked.
        wrong: a text for each wrong call, with its rank.
        flags: doubts about the samples, such as ``fragile`` (docs/method.md)."""

    name: str
    median: float
    interval: tuple[float, float] | None
    times: npt.NDArray[np.float64]
    samples: npt.NDArray[np.float64]
    per_rank: tuple[float, ...]
    skew: float | None
    bandwidth: float | None
    tflops: float | None
    checked: bool
    wrong: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.per_rank)

    def __str__(self) -> str:
        """Return one line: time, interval, rates, what is wrong."""
        low_high = "" if self.interval is None else f" (95 % CI {_interval(self.interval)})"
        parts = [f"{self.name}: {format_seconds(self.median)}{low_high}",
                 *(text for _, text in self._rates()), plural(self.ranks, "rank"),
                 plural(self.times.size, "sample")]
        if self.wrong:
            parts.append(f"WRONG: {self.wrong[0]}")
        return ", ".join([*parts, *self.flags])

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        rows = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th>"
                       f"<td style='text-align:left'>{escape(text)}</td></tr>"
                       for name, text in self._rows())
        return f"<table>{rows}</table>"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "name", self.name
        yield "median", format_seconds(self.median)
        missing = "unreliable" if "ci_unreliable" in self.flags else "too few samples"
        yield "95 % CI", missing if self.interval is None else _interval(self.interval)
        yield from self._rates()
        yield "samples", str(self.times.size)
        shown = [format_seconds(time_s) for time_s in self.per_rank[:_SHOWN_RANKS]]
        yield "median by rank", ", ".join(shown + ["..."] * (self.ranks > _SHOWN_RANKS))
        if self.skew is not None and self.ranks > 1:
            yield "skew", format_seconds(self.skew)
        if self.checked:
            yield "results", "; ".join(self.wrong) or "right"
        if self.flags:
            yield "flags", ", ".join(self.flags)

    def _rates(self) -> Iterator[tuple[str, str]]:
        if self.bandwidth is not None:
            yield "bandwidth", f"{three_digits(to_gb_per_s(self.bandwidth))} GB/s"
        if self.tflops is not None:
            yield "compute", f"{three_digits(self.tflops)} TFLOP/s"


def _interval(ends: tuple[float, float]) -> str:
    return " to ".join(map(format_seconds, ends))
