"""A number or text of cases, declared once; columns, summaries, tables and exports follow from it.

`Show` is the hint of how its values are shown, which only renderers follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from functools import partial
from typing import Any

from hpcbench.records import dataclass
from hpcbench.statistics.overlap import OverPasses, significant
from hpcbench.trace.columns import LINES, PURE, TEXT, json_line
from hpcbench.trace.schema import adapter_of


class Show(Enum):
    """How the values of a column are shown; a value is in the unit given in brackets.

    Times and rates have the digits that their interval allows, without one three significant
    ones; other numbers at least three. None has an exponent."""

    TEXT = "text"
    COUNT = "count"
    """A whole number, also one of bytes or elements."""
    SIZE = "size"
    """[bytes] a whole number and the binary unit that fits"""
    NUMBER = "number"
    US = "us"
    """[s] microseconds"""
    MS = "ms"
    """[s] milliseconds"""
    S = "s"
    """[s] seconds"""
    DURATION = "duration"
    """[s] the unit that fits, three significant digits or those that its interval allows"""
    GB_PER_S = "GB/s"
    """[bytes/s] 1e9 bytes/s"""
    TFLOP_PER_S = "TFLOP/s"
    """[flop/s] 1e12 flop/s"""
    GFLOP = "GFLOP"
    """[flop] 1e9 flop"""
    """[bytes] 1e6 bytes"""
    MIB = "MiB"
    """[bytes] 2**20 bytes"""
    PERCENT = "percent"
    """[share] one decimal"""
    WHOLE_PERCENT = "whole percent"
    """[share] no decimal"""
    SIGNIFICANT_PERCENT = "significant percent"
    """[share] at least three significant digits"""
    RATIO = "ratio"
    """two decimals"""


ABSENT: Mapping[type, Any] = {str: "", int: -1, float: math.nan}
"""Type of a scalar -> what stands in a column where a case has none; others are JSON columns."""
_UNITS = {"_bytes_per_s": "bytes/s", "_flops_per_s": "FLOP/s", "_per_s": "1/s", "_bytes": "bytes",
          "_s": "s", "_j": "J", "_w": "W", "_mhz": "MHz"}
_SHOWN_UNITS = {Show.US: "us", Show.MS: "ms", Show.GB_PER_S: "GB/s", Show.TFLOP_PER_S: "TFLOP/s",
                Show.PERCENT: "%", Show.WHOLE_PERCENT: "%", Show.SIGNIFICANT_PERCENT: "%"}
_OF_MEDIAN = (Show.US, Show.MS, Show.GB_PER_S, Show.TFLOP_PER_S)
Values = Mapping[str, Any]
"""A case's values by the names of its kind's metrics, in SI units; what has none is None."""
Records = Mapping[str, Values]
"""Values by case id."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number or text of a case, in SI units; its name ends with its unit.

    Attributes:
        name: its column of ``/cases``, and, in the units of the summaries, its field there.
        units: of the values in SI; PURE of a number without one, TEXT, or LINES of JSON.
        text: its meaning, as pages and results.h5 have it.
        type: str, int (also yes or no), float; any other is what the lines of a JSON column hold.
        apart: it does not follow from the case's median time, and has not its digits.
        title: what people read above it; tables do not show what has none.
        show: how its values are shown.
        shown_unit: unit or base as people read it, where ``show`` does not tell.
        better: ``less`` or ``more`` if that is better, None if neither is.
        optional: left out of a table in which no row has a value for it.
        of: how it follows from a `CaseResult` alone; None: `Deriver.derive` computes it."""

    name: str
    units: str
    text: str
    type: Any = float
    apart: bool = False
    title: str = ""
    show: Show = Show.TEXT
    shown_unit: str = ""
    better: str | None = None
    optional: bool = False
    of: Callable[[Any], Any] | None = field(default=None, compare=False)

    @property
    def is_scalar(self) -> bool:
        return self.type in ABSENT

    @property
    def unit(self) -> str:
        return self.shown_unit or _SHOWN_UNITS.get(self.show, "")

    @property
    def has_digits_of_median(self) -> bool:
        return self.show in _OF_MEDIAN and not self.apart

    def value(self, item: Any, values: Values | None) -> Any:
        """Return the value of a case (`CaseResult`), None where it has none."""
        return self.of(item) if self.of else (values or {}).get(self.name)

    def plain(self, value: Any) -> Any:
        """Return a value as it is stored: None as ABSENT, lists as text, JSON as its line."""
        if not self.is_scalar:
            return json_line(None if value is None else adapter_of(self.type).dump_python(value),
                             allow_nan=False)
        if value is None:
            return ABSENT[self.type]
        return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else self.type(value)

    def kept(self, value: Any) -> Any:
        """Return a derived value as it is once stored and read. Raises ValueError for a number that
        is not finite, and TypeError or ValueError for what is of another type."""
        if value is None:
            return None
        if not self.is_scalar:
            self.plain(value)
            return value
        if self.type is float and not math.isfinite(value):
            raise ValueError(f"{self.name} is {value}")
        return self.type(value)

    def read(self, stored: Any) -> Any:
        """Return a stored value, None for ABSENT. Raises ValueError for what is damaged."""
        if not self.is_scalar:
            return None if stored == "null" else adapter_of(self.type).validate_json(
                stored, strict=True)
        return None if stored in ("", -1) or stored != stored else stored


def metric(name: str, text: str, units: str = "", **more: Any) -> Metric:
    """Return a metric of float, whose units are those that its name ends with, but for what is
    ``_predicted``."""
    return Metric(name, units or next((
        unit for ending, unit in _UNITS.items()
        if name.removesuffix("_predicted").endswith(ending)), PURE), text, **more)


whole: Callable[..., Metric] = partial(metric, type=int)
word: Callable[..., Metric] = partial(metric, units=TEXT, type=str)
document: Callable[..., Metric] = partial(metric, units=LINES)
"""Makers of metrics: of whole numbers and booleans, of text, of a JSON column of some ``type``."""


def of_workload(name: str) -> Callable[[Any], Any]:
    """Return how a metric follows from the workload's attribute; None of a test without it."""
    return lambda item: getattr(item.case.workload, name, None)


def planned(*metrics: Metric) -> tuple[Metric, ...]:
    """Return the metrics with their values from the workload's attributes of the same names."""
    return tuple(replace(one, of=of_workload(one.name)) for one in metrics)


def metrics_over_passes(
    name: str, text: str, units: str = "", **more: Any,
) -> tuple[Metric, Metric]:
    """Return the median over passes of what ``text`` says of a pass p, absent if it may be chance,
    and the JSON column ``NAME_passes`` with its `OverPasses`."""
    of_passes = f"median over passes of {text}"
    return (metric(name, f"{of_passes}; NaN if it may be chance", units, **more),
            document(f"{name}_passes", f"{of_passes}, with the least and the greatest",
                     type=OverPasses))


def values_over_passes(name: str, passes: OverPasses | None) -> dict[str, Any]:
    return {name: significant(passes), f"{name}_passes": passes}


@dataclass(frozen=True, slots=True)
class KindColumns:
    """Columns of /cases that not all runs have, values by case id as they are stored, and the
    reasons of kinds that have none. ``documents`` are columns of JSON, which are not in ``values``.
    """

    columns: Sequence[Metric] = ()
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    documents: Sequence[Metric] = ()
