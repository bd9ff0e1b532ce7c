"""A file of limits: what results must reach, as data; every problem of it is one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.section import Section, Text, key
from hpcbench.errors import ConfigError, FileError

MOST_BYTES = 2**22
SCALES: Mapping[str, tuple[str, float]] = {
    "s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6),
    "bytes/s": ("bytes/s", 1.0), "GB/s": ("bytes/s", 1e9), "MB/s": ("bytes/s", 1e6),
    "FLOP/s": ("FLOP/s", 1.0), "TFLOP/s": ("FLOP/s", 1e12), "GFLOP/s": ("FLOP/s", 1e9),
    "bytes": ("bytes", 1.0), "GB": ("bytes", 1e9), "GiB": ("bytes", 2.0**30),
    "1/s": ("1/s", 1.0), "1": ("1", 1.0)}
"""Unit of a limit -> the unit of the column, and how many of that it is."""
Number = Annotated[float, Field(allow_inf_nan=False)]


class Limit(Section):
    """One limit: of a column of ``/cases``, for the cases that ``select`` names."""

    metric: Text = Field(description="Column of /cases, such as median_s or busbw_bytes_per_s.")
    select: dict[str, Text | int | float | bool] = key(
        {}, "Column -> the value that a case must have; label takes a shell pattern.")
    min: Number | None = key(None, "Least value.")
    max: Number | None = key(None, "Greatest value.")
    unit: str = key("", "Unit of min and max; default: the column's.")
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
        if problem:
            raise PydanticCustomError("limit", "{problem}", {"problem": problem})
        return self


class Limits(Section):
    """A whole file of limits."""

    limits: Annotated[tuple[Limit, ...], Field(min_length=1)]


def read_limits(path: Path) -> Limits:
    """Return the limits of a YAML or JSON file. Raises FileError or ConfigError, a line a problem.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileError(f"{path}: more than {MOST_BYTES:,} bytes is no file of limits")
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise FileError(f"{path}: is no YAML that can be read: too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # a date or a number that is none; no UTF-8
        raise FileError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None
    return checked_limits(raw, str(path))


def checked_limits(raw: Any, name: str) -> Limits:
    """Return checked limits. Raises ConfigError with every problem, each with the file's name."""
    if not isinstance(raw, Mapping) or set(raw) != {"limits"} or not isinstance(
            raw["limits"], list):
        raise ConfigError(f'{name}: must be a mapping with one key, "limits", which is a list')
    try:
        return Limits(limits=tuple(_checked(item, at, name) for at, item in
                                   enumerate(raw["limits"])))
    except ValidationError:
        raise ConfigError(f"{name}: limits is empty; give at least one") from None


def _checked(item: Any, at: int, name: str) -> Limit:
    try:
        return Limit.model_validate(item)
    except ValidationError as error:
        raise ConfigError("\n".join(
            f"{name}: limits[{at}]{''.join(f'.{part}' for part in found['loc'])}: "
            f"{found['msg']}" for found in error.errors(include_url=False))) from None
