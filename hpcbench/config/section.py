"""The base of all sections of a sweep file, and the types of their values."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from hpcbench.config import names
from hpcbench.config.axes import named
from hpcbench.kinds.registry import kind_aliases, kinds
from hpcbench.operations.collectives import collective_aliases, collective_names

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Kind = Annotated[str, named(kinds(), kind_aliases(), names.unknown_kind)]
Benchmark = Annotated[str, named((*kinds(), names.SCALING), kind_aliases(), names.unknown_kind)]
"""What of a sweep is run: the blocks of a kind, or those that scale."""
CollectiveName = Annotated[str, named(collective_names(), collective_aliases())]
Backend = Annotated[str, named(names.BACKENDS)]
Requirable = Annotated[str, named(names.REQUIRABLE)]
Device = Annotated[str, named(names.DEVICES)]
DeviceType = Annotated[str, named(names.DEVICE_TYPES, {"metal": "mps"})]
Dtype = Annotated[str, named(names.DTYPES, names.DTYPE_ALIASES)]
PeakType = Annotated[str, named(names.PEAK_TYPES, names.DTYPE_ALIASES)]
Op = Annotated[str, named(names.OPS)]
Split = Annotated[str, named(names.SPLITS)]
Buffers = Annotated[str, named(names.BUFFERS)]
Mode = Annotated[str, named(names.MODES)]
Order = Annotated[str, named(names.ORDERS)]
FaultKind = Annotated[str, named(names.FAULTS)]
Profiler = Annotated[str, named(names.PROFILERS)]
Trigger = Annotated[str, named(names.TRIGGERS)]
Target = Annotated[str, named(names.TARGETS)]
Unread = Annotated[str, named(names.TELEMETRY_OFF)]
Text = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]+$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Timeout = Annotated[float, Field(gt=0, le=604_800)]
Wakeup = Annotated[float, Field(ge=0.0005, le=60)]
Warmup = Annotated[int, Field(ge=0, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Default = TypeVar("Default")


def key(default: Default, description: str, **more: Any) -> Default:
    """Return the field of a key that may be left out; ``more`` is what pydantic's Field takes.

    Type checkers compare the default with the key's type, as they do for a plain one.
    """
    return cast("Default", Field(default=default, description=description, **more))
