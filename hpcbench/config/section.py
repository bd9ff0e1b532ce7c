"""Sections that others are made of: faults, limits, blocks of every kind; and types of values.

Every key of a block that takes a list is an axis: it is measured at each point of the product."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from hpcbench.config import axes as names
from hpcbench.config.axes import (
    ArrivalAxis,
    Axis,
    CheckAxis,
    Checked,
    Environment,
    Iterations,
    JsonSchema,
    WorldSize,
    as_tuple,
    named,
    one_or_many,
    quote,
    values_of,
)
from hpcbench.errors import ConfigError, FileError
from hpcbench.kinds.registry import kind_aliases, kinds
from hpcbench.operations.collectives import collective_names, collectives
from hpcbench.records import dataclass
from hpcbench.units import parse_bytes

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Kind = Annotated[str, named(kinds(), kind_aliases(), names.unknown_kind)]
Benchmark = Annotated[str, named((*kinds(), names.SCALING), kind_aliases(), names.unknown_kind)]
"""The part of a sweep that is run: the blocks of a kind, or those that scale."""
CollectiveName = Annotated[str, named(collective_names(), collectives().aliases)]
Backend = Annotated[str, names.backend_or(names.BACKENDS)]
Requirable = Annotated[str, names.backend_or(names.REQUIRABLE)]
Device = Annotated[str, named(names.DEVICES)]
DeviceType = Annotated[str, named(names.DEVICE_TYPES, {"metal": "mps"})]
Dtype = Annotated[str, named(names.DTYPES, names.DTYPE_ALIASES)]
PeakType = Annotated[str, named(names.PEAK_TYPES, names.DTYPE_ALIASES)]
Op = Annotated[str, named(names.OPS)]
Cache = Annotated[str, named(names.BUFFERS)]
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
PollInterval = Annotated[float, Field(ge=0.0005, le=60)]
Warmup = Annotated[int, Field(ge=0, le=1_000_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


Default = TypeVar("Default")


def key(default: Default, description: str, **more: Any) -> Default:
    """Return the field of a key that may be left out, typed as its default."""
    return cast("Default", Field(default=default, description=description, **more))


TITLE = "Benchmark Results"
"""A line that callers of DDLB and of the Candle suite look for in the output."""


class Dialect(Section):
    """A whole sweep file of another tool; its fields are that file's keys.

    ``tool`` is the name of the tool in messages."""

    tool: ClassVar[str]

    @classmethod
    @abstractmethod
    def own_keys(cls, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys of a raw file that no other tool's files have; none: it is no such file.
        """

    @abstractmethod
    def translated(self, file: str = "") -> dict[str, Any]:
        """Return the same sweep as a raw mapping of ours, for a file of that name.

        Its ``notes`` list, one line each, what could not be carried over."""


class Fault(Section):
    """An error made on purpose, to test how a run deals with it. For testing only."""

    case: Text = key("*", "Shell pattern on a case's label or id.")
    rank: Annotated[int, Field(ge=0)] = Field(description="The rank it happens on.")
    kind: FaultKind = Field(description="The fault.")
    iteration: Annotated[int, Field(ge=0)] | None = key(
        None, "When, counted from the first warm-up; default 0, of slow every timed one.")
    seconds: Positive = key(
        0.1, "How much later a slow rank starts; slow_samples: how much longer a training's step "
        "then takes for each sample of its batch.")
    cycle: Annotated[int, Field(ge=1)] | None = key(
        None, "Of soak: the cycle in which it happens, of slow ones the first; default: each.")


def fault_texts(stored: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return each fault of a ``fault`` section in words; also of an older version's."""
    return tuple(dict.fromkeys(map(_text, stored)))


def _text(fault: Mapping[str, Any]) -> str:
    kind, at = fault.get("kind"), fault.get("iteration")
    of = {"slow": "", "slow_samples": " for each sample of the batch"}.get(str(kind))
    lasting = f" by {fault['seconds']:g} s{of}" if "seconds" in fault and of is not None else ""
    when = "each timed iteration" if kind == "slow" and at is None else f"iteration {at or 0}"
    since = "from" if kind == "slow_samples" else "in"
    return f"{kind}{lasting} on rank {fault.get('rank')} {since} {when} of {fault.get('case', '*')}"


SCALES: Mapping[str, tuple[str, float]] = {
    "s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6),
    "bytes/s": ("bytes/s", 1.0), "GB/s": ("bytes/s", 1e9), "MB/s": ("bytes/s", 1e6),
    "FLOP/s": ("FLOP/s", 1.0), "TFLOP/s": ("FLOP/s", 1e12), "GFLOP/s": ("FLOP/s", 1e9),
    "bytes": ("bytes", 1.0), "GB": ("bytes", 1e9), "GiB": ("bytes", 2.0**30),
    "1/s": ("1/s", 1.0), "1": ("1", 1.0)}
"""Unit of a limit -> the unit of the column, and how many of that it is."""


def units_of(column_units: str) -> tuple[str, ...]:
    """Return the units that a limit of a column in ``column_units`` may have."""
    return tuple(unit for unit, (of, _) in SCALES.items() if of == column_units)


_OF_RATES = (("_bytes_per_s", "bytes/s"), ("_flops_per_s", "FLOP/s"))
"""End of a rate's column -> its unit, where people use several; other rates are in 1/s."""
LAUNCHES_HAVE = "median_s"
"""The only column of which each launch has a value."""
Number = Annotated[float, Field(allow_inf_nan=False)]
_SHORT = {"busbw": "busbw_bytes_per_s", "algbw": "algbw_bytes_per_s"}


def _column(metric: str) -> str:
    return _SHORT.get(metric, metric)


class Limit(Section):
    """One limit: of a column of ``/cases``, for the cases that ``select`` names."""

    metric: Annotated[Text, AfterValidator(_column)] = Field(
        description="Column of /cases, such as median_s or busbw_bytes_per_s; or busbw, algbw.")
    select: dict[str, Text | int | float | bool] = key(
        {}, "Column -> the value that a case must have; label takes a shell pattern.")
    min: Number | None = key(None, "Least value.")
    max: Number | None = key(None, "Greatest value.")
    unit: str = key("", "Unit of min and max; default: the column's.")
    of: Literal["interval", "launches"] = key(
        "interval", "Compared value: the value with its interval, or the median of each launch.")
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
_TEXT = re.compile(r"(?P<name>[^:=]+)(:(?P<size>[^:=]+))?:(?P<metric>\w+)=(?P<value>[^=]+)")
_VALUE = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


def limit_below(text: str) -> Limit:
    """Return the limit of ``NAME[:SIZE]:METRIC=VALUE[UNIT]``: the least of a rate.

    NAME is the first word of labels, or a shell pattern of whole labels. SIZE is as in the sweep
    file. Raises ValueError with the problem."""
    match = _TEXT.fullmatch(text.strip())
    value = _VALUE.fullmatch(match["value"]) if match else None
    if match is None or value is None:
        raise ValueError(f"write {FORM}")
    metric = _column(match["metric"])
    if not metric.endswith(RATE):
        raise ValueError(f'"{metric}" is no rate, so less of it is no failure; use busbw, algbw, '
                         f"or a column that ends with {RATE}; of times give limits with max")
    name, select = match["name"], {}
    select["label"] = name if any(char in name for char in "*?[") else f"{name} *"
    if match["size"]:
        select["requested_bytes"] = parse_bytes(match["size"])
    if value[2] and value[2] not in SCALES:
        raise ValueError(f'unit "{value[2]}" is not known; allowed: {", ".join(SCALES)}')
    return Limit(metric=metric, select=select, min=float(value[1]), unit=value[2],
                 why=f"--fail-below {text.strip()}")


def _checked_limit(text: str) -> str:
    try:
        limit = limit_below(text)
        units = next((units_of(of) for end, of in _OF_RATES if limit.metric.endswith(end)), ())
        if units and not limit.unit:
            raise ValueError(f"{limit.min:g} of what? give its unit: {', '.join(units)}")
    except ValueError as error:
        raise PydanticCustomError("fail_below", '"{text}": {problem}', {
            "text": text, "problem": str(error)}) from None
    return text


Below = Annotated[Text, AfterValidator(_checked_limit)]
"""Text that `limit_below` understands."""


MOST_LIMITS_BYTES = 2**22


class LimitsFile(Section):
    """A whole file of limits."""

    limits: Annotated[tuple[Limit, ...], Field(min_length=1)]


def read_limits(path: Path) -> LimitsFile:
    """Return the limits of a YAML or JSON file. Raises FileError or ConfigError, a line a problem.
    """
    from hpcbench.config.yaml_text import from_yaml

    try:
        if path.stat().st_size > MOST_LIMITS_BYTES:
            raise FileError(f"{path}: more than {MOST_LIMITS_BYTES:,} bytes is no file of limits")
        raw = from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise FileError(f"{path}: is no YAML that can be read: too deep") from None
    except ValueError as error:  # an invalid date or number; no UTF-8
        raise FileError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None
    return checked_limits(raw, str(path))


def checked_limits(raw: Any, name: str) -> LimitsFile:
    """Return checked limits. Raises ConfigError with every problem, each with the file's name."""
    if not isinstance(raw, Mapping) or set(raw) != {"limits"} or not isinstance(
            raw["limits"], list):
        raise ConfigError(f'{name}: must be a mapping with one key, "limits", which is a list')
    try:
        return LimitsFile(limits=tuple(_limit_at(at, item, name) for at, item in
                                       enumerate(raw["limits"])))
    except ValidationError:
        raise ConfigError(f"{name}: limits is empty; give at least one") from None


def _limit_at(at: int, item: Any, name: str) -> Limit:
    try:
        return Limit.model_validate(item)
    except ValidationError as error:
        raise ConfigError(*(
            f"{name}: limits[{at}]{''.join(f'.{part}' for part in found['loc'])}: "
            f"{found['msg']}" for found in error.errors(include_url=False))) from None


Extent = Annotated[int, Field(ge=1, le=2**31)]


@dataclass(frozen=True, slots=True)
class Replaceable:
    """A key of a block whose names another key, or a flag, can replace.

    ``described_by`` are the keys that describe the named further, and have no meaning for another.
    ``lacking`` maps other keys to the names for which they have no meaning."""

    key: str
    described_by: tuple[str, ...] = ()
    lacking: Mapping[str, frozenset[str]] = field(default_factory=dict)


B = TypeVar("B", bound="Block")


class Block(Section):
    """The keys of every sweep: where it runs, and how its cases are measured.

    ``replaceable`` maps a key of the file, such as ``model``, to what it replaces in the block.
    ``scales``: whether ``benchmark: scaling`` runs it, on several numbers of ranks.
    ``own`` are the keys of a block that runs where ``benchmark`` names the kind, and the file has
    no block of it; empty: there is none.
    ``paths`` are keys whose values are paths, ``beside`` those relative to the sweep file, as are
    values with the suffixes in ``named_beside`` of keys that else have names. A file with this
    ``suffix`` is a whole block, whose first key of ``beside`` is the file."""

    scales: ClassVar[bool] = False
    own: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    replaceable: ClassVar[Mapping[str, Replaceable]] = MappingProxyType({})
    beside: ClassVar[tuple[str, ...]] = ()
    named_beside: ClassVar[Mapping[str, str]] = MappingProxyType({})
    paths: ClassVar[tuple[str, ...]] = ()
    suffix: ClassVar[str] = ""
    kind: Kind = Field(description="collective (or comm), primitive (or primitives), training (or "
                             "train), hardware (or machine), memory, function, or replay.")
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = key(
        None, "Title of the block's table; default: kind and number.")
    backend: Axis[Backend] = key(
        ("gloo",), "Communication backend; torch:NAME: any that torch.distributed takes. Default "
        "where there is a GPU: nccl.")
    device: Axis[Device] = key(
        ("auto",), "Device of the buffers; auto: cpu for gloo, cuda for nccl.")
    env: Environment = key({}, "Environment variables of the workers.")
    world_size: Axis[WorldSize] = key(
        ("all",), "Run on the first k ranks of the job; all: on every rank.")
    dtype: Axis[Dtype] = key(("fp32",), "Element type; `hpcbench list` names all.")
    mode: Axis[Mode] | None = key(None, "Instead of that of measure.")
    warmup: Axis[Warmup] | None = key(None, "Instead of that of measure.")
    iterations: Axis[Iterations] | None = key(None, "Instead of that of measure.")
    check: Axis[CheckAxis] | None = key(None, "Instead of that of measure.", alias="validate")
    poll_interval_s: Axis[PollInterval] | None = key(None, "Instead of launch.poll_interval_s.")
    cuda_graph: Axis[bool] | None = key(
        None, "Capture the call in a CUDA graph, and replay it as the sample.")
    arrival: Axis[ArrivalAxis] | None = key(
        None, "together (default), or {late, by}: last, a rank, rotating or all; by such as 250us.")
    timeout_s: Timeout | None = key(None, "Instead of launch.timeout_s; a limit, so no list.")

    @classmethod
    def of_plain(cls: type[B], raw: Mapping[str, Any], where: str) -> B:
        """Return a block of plain values. Raises ConfigError of the first bad one."""
        try:
            return cls.model_validate_json(json.dumps(raw))
        except ValidationError as error:
            first = error.errors()[0]
            key = "".join(f"{part}: " for part in first["loc"][:1])
            reason = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{where}: {key}{reason}") from None

    @property
    def takes_native_backend(self) -> bool:
        """Return whether the machine's own backend is to be used where the block names none."""
        return "backend" not in self.model_fields_set and not {"cpu", "mps"} & {*self.device}


def block_title(name: str | None, kind: str, number: int) -> str:
    """Return the title of a block of a sweep: its name, else its kind and number, from 1."""
    return name or f"{kind}-{number}"


class UnusableBlock(Block):
    """A block of a kind whose plug-in cannot be imported: its own keys are kept unchecked."""

    model_config = ConfigDict(extra="allow")


OptionAxes = dict[str, tuple[str | int | bool, ...]]


def _checked(what: str) -> Checked:
    """Return the annotation of names with options; ``what`` is what the names are of.

    They are written as one name, a list of names, or a mapping of names to options or to a list of
    several sets of options. The plan checks names and options, because plug-ins may add some."""
    def check(value: Any) -> dict[str, tuple[OptionAxes, ...]]:
        if isinstance(value, Mapping):
            by_name = {_name(name, what): _sets(name, sets) for name, sets in value.items()}
        else:
            by_name = {_name(name, what): ({},) for name in as_tuple(value)}
        if not by_name:
            raise ValueError(f"no {what} is named; give at least one")
        return by_name

    return Checked(check, _schema)


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        article = "an" if what[0] in "aeiou" else "a"
        raise ValueError(f"{quote(value)} is not the name of {article} {what}")
    return value


def _sets(name: str, options: Any) -> tuple[OptionAxes, ...]:
    sets = as_tuple({} if options is None else options)
    if not sets:
        raise ValueError(f"{name}: the list is empty; give at least one mapping of options")
    return tuple(_axes(name, one) for one in sets)


def _axes(name: str, options: Any) -> OptionAxes:
    if not isinstance(options, Mapping):
        raise ValueError(f'{name}: {quote(options)} is not a mapping of options; write '
                         '{"chunks": [2, 4]}')
    return {str(option): _values(f"{name}.{option}", values) for option, values in options.items()}


def _values(where: str, values: Any) -> tuple[str | int | bool, ...]:
    items = values_of(where, values)
    for value in items:
        if type(value) not in (str, int, float, bool):
            raise ValueError(f"{where}: {quote(value)} is not text, a number, true or false")
    return tuple(str(value) if type(value) is float else value for value in items)


def _schema() -> JsonSchema:
    value: JsonSchema = {"type": ["string", "number", "boolean"]}
    axes: JsonSchema = {"type": "object", "additionalProperties": one_or_many(value)}
    names: JsonSchema = one_or_many({"type": "string"})
    return {"anyOf": [*names["anyOf"], {"type": "object", "minProperties": 1,
                                        "additionalProperties": one_or_many(axes)}]}


Implementations = Annotated[dict[str, tuple[OptionAxes, ...]], _checked("implementation")]
"""Implementation -> its sets of options, each option with all its values."""
Strategies = Annotated[dict[str, tuple[OptionAxes, ...]], _checked("strategy")]
"""Training strategy -> its sets of options, each option with all its values."""
