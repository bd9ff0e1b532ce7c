"""One limit of a result: of a file of limits, of a sweep file, or of ``--fail-below``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.section import Section, Text, key
from hpcbench.units import parse_bytes

SCALES: Mapping[str, tuple[str, float]] = {
    "s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6),
    "bytes/s": ("bytes/s", 1.0), "GB/s": ("bytes/s", 1e9), "MB/s": ("bytes/s", 1e6),
    "FLOP/s": ("FLOP/s", 1.0), "TFLOP/s": ("FLOP/s", 1e12), "GFLOP/s": ("FLOP/s", 1e9),
    "bytes": ("bytes", 1.0), "GB": ("bytes", 1e9), "GiB": ("bytes", 2.0**30),
    "1/s": ("1/s", 1.0), "1": ("1", 1.0)}
"""Unit of a limit -> the unit of the column, and how many of that it is."""
LAUNCHES_HAVE = "median_s"
"""The only column of which each launch has a value."""
Number = Annotated[float, Field(allow_inf_nan=False)]


class Limit(Section):
    """One limit: of a column of ``/cases``, for the cases that ``select`` names."""

    metric: Text = Field(description="Column of /cases, such as median_s or busbw_bytes_per_s.")
    select: dict[str, Text | int | float | bool] = key(
        {}, "Column -> the value that a case must have; label takes a shell pattern.")
    min: Number | None = key(None, "Least value.")
    max: Number | None = key(None, "Greatest value.")
    unit: str = key("", "Unit of min and max; default: the column's.")
    of: Literal["interval", "launches"] = key(
        "interval", "What is compared: the value with its interval, or the median of each launch.")
    why: Text | None = key(None, "Where the limit is from; printed with a violation.")

    @model_validator(mode="after")
    def _says_something(self) -> Limit:
        problem = ""
        if self.min is None and self.max is None:
            problem = "a limit has min, max, or both"
        elif self.min is not None and self.max is not None and self.min > self.max:
            problem = f"min {self.min:g} is more than max {self.max:g}"
        elif self.unit and self.unit not in SCALES:
            problem = f'unit "{self.unit}" is not known; allowed: {", ".join(SCALES)}'
        elif self.of == "launches" and self.metric != LAUNCHES_HAVE:
            problem = f"launches have {LAUNCHES_HAVE} only: drop of: launches, or name that metric"
        if problem:
            raise PydanticCustomError("limit", "{problem}", {"problem": problem})
        return self


FORM = "NAME[:SIZE]:METRIC=VALUE[UNIT], such as all_reduce:4MiB:busbw=1.2GB/s"
RATE = "_per_s"
_SHORT = {"busbw": "busbw_bytes_per_s", "algbw": "algbw_bytes_per_s"}
_TEXT = re.compile(r"(?P<name>[^:=]+)(:(?P<size>[^:=]+))?:(?P<metric>\w+)=(?P<value>[^=]+)")
_VALUE = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


def limit_below(text: str) -> Limit:
    """Return the limit of ``NAME[:SIZE]:METRIC=VALUE[UNIT]``: the least of a rate.

    NAME is the first word of labels, or a shell pattern of whole labels. SIZE is as in the sweep
    file. Raises ValueError, which says what is wrong.
    """
    found = _TEXT.fullmatch(text.strip())
    value = _VALUE.fullmatch(found["value"]) if found else None
    if found is None or value is None:
        raise ValueError(f"write {FORM}")
    metric = _SHORT.get(found["metric"], found["metric"])
    if not metric.endswith(RATE):
        raise ValueError(f'"{metric}" is no rate, so less of it is no failure; use busbw, algbw, '
                         f"or a column that ends with {RATE}; of times give limits with max")
    name, select = found["name"], {}
    select["label"] = name if any(char in name for char in "*?[") else f"{name} *"
    if found["size"]:
        select["requested_bytes"] = parse_bytes(found["size"])
    if value[2] and value[2] not in SCALES:
        raise ValueError(f'unit "{value[2]}" is not known; allowed: {", ".join(SCALES)}')
    return Limit(metric=metric, select=select, min=float(value[1]), unit=value[2],
                 why=f"--fail-below {text.strip()}")


def _checked(text: str) -> str:
    try:
        limit_below(text)
    except ValueError as error:
        raise PydanticCustomError("fail_below", '"{text}": {problem}', {
            "text": text, "problem": str(error)}) from None
    return text


Below = Annotated[Text, AfterValidator(_checked)]
"""Text that `limit_below` understands."""
