"""The names that a sweep file may use, and the types of its fields: axes, sizes, environments.

Each type is ``Annotated``: its check returns the canonical value or raises a ``ValueError`` with
the sentence that the user reads, and editors get its JSON Schema."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from hpcbench.operations.arrival import MOST_NS, TOGETHER, WHO, ArrivalPattern
from hpcbench.operations.collectives import DTYPE_BYTES as DTYPE_BYTES
from hpcbench.operations.collectives import MAX_WORLD_SIZE as MAX_WORLD_SIZE
from hpcbench.operations.collectives import NUMBER_BYTES
from hpcbench.operations.loads import BALANCED, MATRIX, NUMBERED, PATTERN, Load
from hpcbench.records import dataclass
from hpcbench.texts import holds_secret, masked
from hpcbench.units import duration_text, parse_bytes, parse_duration_ns, shortened

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

BACKENDS = ("gloo", "nccl", "ucc", "ucc/tl/ucp", "ucc/tl/cuda", "ucc/tl/nccl", "mpi",
            "mpi/direct")
TORCH = "torch:"
"""Before the name of any backend that torch.distributed takes, such as ``torch:cpu:gloo``."""
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,59}"
_OF_TORCH = re.compile(f"torch:({_WORD}|{_WORD}:{_WORD}(,{_WORD}:{_WORD}){{0,7}})")
DEVICES = ("auto", "cpu", "cuda", "mps")
GPU_DEVICES = ("cuda", "mps")
REQUIRABLE = (*BACKENDS, *GPU_DEVICES)
"""Names that `required_backends` may have."""
DEVICE_TYPES = ("cpu", "cuda", "mps")

DTYPES = tuple(DTYPE_BYTES)
DTYPE_ALIASES: Mapping[str, str] = MappingProxyType({  # of torch and nccl-tests
    "float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64",
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "int": "int32", "long": "int64",
})
PEAK_TYPES = (*NUMBER_BYTES, "tf32", "fp8", "int8")
"""Element types that have a peak: those of products alone, too."""
FLOATING_DTYPES = ("fp32", "fp64", "fp16", "bf16")
COMPLEX_DTYPES = ("complex64", "complex128")
SPLITS = ("even", "linear", "one_heavy", "zero")
"""How the data are divided among the ranks (docs/method.md), as workloads store it."""
UNEVEN: Mapping[str, str] = MappingProxyType({
    "none": "even", "linear": "linear", "one_heavy": "one_heavy", "empty": "zero"})
"""Value of a block's key `uneven` -> the split of `SPLITS` that it stands for."""
LOAD_NAMES = (BALANCED, *(f"{name}:NUMBER" for name in NUMBERED), MATRIX)
"""How loads of experts are written; ``,seed=NUMBER`` may follow."""
BUFFERS = ("warm", "cold")
"""Whether a call finds its buffers as they were just restored, or in memory (docs/method.md)."""
BITWISE = ("band", "bor", "bxor")
"""Reductions of integers and of bool."""
OPS = ("sum", "prod", "min", "max", "avg", *BITWISE)
MODES = ("isolated", "pipelined", "barrier_start")
RETRIED = ("failed", "wrong", "timeout", "skipped")
"""Statuses of cases that are run again on request (`run --resume --retry`)."""
ORDERS = ("shuffled", "planned")
FAULTS = ("kill", "segv", "stop", "raise", "abort", "oom", "exit", "slow", "slow_samples", "wrong",
          "desync", "teardown", "device_error", "device_oom", "device_hang")
SLOWING = ("slow", "slow_samples")
"""Of these, those after which a sample is still one: it takes longer."""
PROFILERS = ("torch", "nsys", "none")
"""Who records profiled samples; none: only the stamps that every sample has are analysed."""
TRIGGERS = ("always", "sync_stalls")
"""Which cases are profiled: all, or those whose ranks wait for each other."""
TARGETS = ("sync_stalls", "compute", "communication")
"""Targets of a profile: ranks that wait for each other, computing, or communication."""
TELEMETRY = ("process", "cpu", "frequency", "energy", "network", "gpu")
"""Sources of telemetry, which supervisors read while workers measure (docs/telemetry.md)."""
TELEMETRY_OFF = (*TELEMETRY, "all")
YAML_SWITCHES = "YAML reads on and yes as true, off and no as false: put such a text in quotes"
_NOTHING: Mapping[str, str] = MappingProxyType({})


def nearest(name: str, known: Iterable[str], aliases: Iterable[str] = ()) -> str | None:
    """Return the name closest to a misspelt or shortened one, or None if none is close.

    An alias stands for one of the known names, so it is returned only if none of these is close."""
    for names in (list(known), list(aliases)):
        matches = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6) or [
            one for one in names if len(name) > 2 and one.startswith(name.lower())]  # as iter does
        if matches:
            return matches[0]
    return None


def unknown_name(
    name: object, allowed: Iterable[str], aliases: Iterable[str] = (),
    of_others: Mapping[str, str] = _NOTHING,
) -> str:
    """Return the message for a name that is not allowed, with the nearest that is; aliases are not
    listed, and ``of_others`` are other tools' names."""
    names = list(allowed)
    guess = (of_others.get(name.lower()) or nearest(name, names, aliases)
             if isinstance(name, str) else None)
    hint = f' did you mean "{guess}"?' if guess else ""
    read = f"; {YAML_SWITCHES}" if isinstance(name, bool) else ""
    return f"{quote(name)} is not known;{hint} allowed: {', '.join(names)}{read}"


SCALING = "scaling"
"""In place of a kind: all blocks that scale, on 1, 2, 4 ... and all ranks."""


def unknown_kind(name: object, kinds: Iterable[str], aliases: Mapping[str, str]) -> str:
    """Return the message for an unknown kind, with the known ones and their other names."""
    known = list(kinds)
    guess = nearest(name, known, aliases) if isinstance(name, str) else None
    what = f'is not known; did you mean "{guess}"?' if guess else "is not installed;"
    there_are = ", ".join(
        kind + "".join(f" ({alias})" for alias, of in aliases.items() if of == kind)
        for kind in known)
    return f"kind {quote(name)} {what} allowed, with other names: {there_are}"


def quote(value: object) -> str:
    """Return a value as it would be written in JSON, shortened."""
    return shortened(json.dumps(value, default=str))


MAX_ITERATIONS = 1_000_000
MAX_SIZES = 10_000
MAX_SIZE_BYTES = 2**44
_RESERVED = re.compile(
    r"(OMPI|PMIX|PMI|MPI|MPICH|SLURM|PRTE)_.*|MASTER_(ADDR|PORT)|RANK|WORLD_SIZE"
    r"|LOCAL_(RANK|WORLD_SIZE)"
)
_OF_GROUPS = ("size", "count", "stride")
NCCL_TESTS_SPLIT = re.compile(r"NCCL_TESTS_SPLIT(_MASK)?")
SPLIT_HINT = ('only nccl-tests reads it; here a block of collectives has the key "groups": '
              'MOD 8 is {"stride": 8}, DIV 8 is {"size": 8}')
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

T = TypeVar("T")
JsonSchema = dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """Annotation: a plain function checks the value, a literal schema describes it.

    ``plain`` returns the spelling of the file, where the value is none of JSON."""

    check: Callable[[Any], Any]
    schema: Callable[[], JsonSchema]
    plain: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.check, serialization=self.plain and
            core_schema.plain_serializer_function_ser_schema(self.plain))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        return self.schema()


@dataclass(frozen=True)
class OneOrMany:
    """Annotation of a tuple field: a single value stands for a list of one."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(as_tuple, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        array = dict(handler(schema))
        return {"anyOf": [array["items"], array]}


@dataclass(frozen=True)
class NotEmpty:
    """Annotation of a tuple field: it has an item."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(source), "min_length": 1}


@dataclass(frozen=True)
class Then:
    """Annotation: a plain function returns the value that takes the place of the checked one."""

    result: Callable[[Any], Any]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.result, handler(source))


def one_or_many(value: JsonSchema) -> JsonSchema:
    """Return the schema of one such value, or a list of some."""
    return {"anyOf": [value, {"type": "array", "minItems": 1, "items": value}]}


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return a list's items, or the one value, as a tuple."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def values_of(where: str, value: Any) -> tuple[Any, ...]:
    """Return a list's items, or the one value. Raises ValueError for an empty list."""
    if items := as_tuple(value):
        return items
    raise ValueError(f"{where}: the list is empty; give at least one value")


Axis = Annotated[tuple[T, ...], NotEmpty(), OneOrMany()]
"""One value or a non-empty list; a list of several is an axis of the sweep."""


def named(
    known: Iterable[str], aliases: Mapping[str, str] | None = None,
    unknown: Callable[[object, Iterable[str], Mapping[str, str]], str] = unknown_name,
) -> Checked:
    """Return the annotation of a name from a fixed set; aliases become the name they stand for.

    ``unknown`` gives the message for a value that is none of them. YAML reads on as true: a set
    with on and off takes true and false for them."""
    names, other = tuple(known), dict(aliases or {})
    table = {**{name: name for name in names}, **other}

    def check(value: Any) -> str:
        name = ("on" if value else "off") if isinstance(value, bool) else value
        if not isinstance(name, str) or name not in table:
            raise ValueError(unknown(value, names, other))
        return table[name]

    return Checked(check, lambda: {"enum": list(table)})


def _check_uneven(value: Any) -> str:
    """Return how parts differ: a name of UNEVEN, or a load, as its `Load.text`."""
    names = [*UNEVEN, *LOAD_NAMES]
    if not isinstance(value, str) or value.partition(":")[0] not in (
            *UNEVEN, BALANCED, *NUMBERED, MATRIX):
        raise ValueError(unknown_name(value, names))
    if value in UNEVEN:
        return value
    load = Load.from_text(value)
    return "none" if load.name == BALANCED else load.text


UnevenAxis = Annotated[str, Checked(_check_uneven, lambda: {
    "anyOf": [{"enum": [*UNEVEN]}, {"type": "string", "pattern": f"^({PATTERN})$"}]})]
"""How the parts of ranks differ in size."""


def torch_libraries(backend: str) -> Mapping[str, str]:
    """Return device -> library of ``torch:cpu:gloo,cuda:nccl``; nothing of a name without devices.

    Small letters, as torch takes them."""
    pairs = backend.removeprefix(TORCH).lower().split(",") if backend.startswith(TORCH) else []
    return {device: library for device, _, library in (pair.rpartition(":") for pair in pairs)
            if device}


def library_of(backend: str, device: str = "") -> str:
    """Return the library of a backend: ``ucc`` of ucc/tl/ucp, ``gloo`` of torch:gloo.

    A backend with a library a device has that of ``device``, or the one that all have."""
    libraries = torch_libraries(backend)
    if device in libraries or len(set(libraries.values())) == 1:
        return libraries.get(device) or next(iter(libraries.values()))
    name = backend.removeprefix(TORCH)
    return (name.lower() if backend.startswith(TORCH) else name).partition("/")[0]


def is_backend(name: object) -> bool:
    return isinstance(name, str) and (name in BACKENDS or bool(_OF_TORCH.fullmatch(name)))


def backend_or(known: Iterable[str]) -> Checked:
    """Return the annotation of a backend's name, torch:NAME included, or one of ``known``."""
    names = tuple(known)

    def check(value: Any) -> str:
        if is_backend(value) or value in names:
            return value  # type: ignore[no-any-return]
        if isinstance(value, str) and value.startswith(TORCH):
            raise ValueError(f"{quote(value)} names no backend; write torch:NAME with what torch's "
                             "init_process_group takes: torch:gloo, torch:cpu:gloo,cuda:nccl")
        raise ValueError(f"{unknown_name(value, names)}, or torch:NAME")

    return Checked(check, lambda: {"anyOf": [{"enum": list(names)}, {
        "type": "string", "pattern": f"^{_OF_TORCH.pattern}$"}]})


def number_or(alternative: str, meaning: str, most: int) -> Checked:
    """Return the annotation of a number from 1 to ``most`` that may also be ``alternative``."""
    def check(value: Any) -> int | str:
        if value == alternative or (type(value) is int and 1 <= value <= most):
            return value  # type: ignore[no-any-return]
        raise ValueError(f'{quote(value)} is not a {meaning}; write a number from 1 to '
                         f'{most}, or "{alternative}"')

    return Checked(check, lambda: {"anyOf": [
        {"type": "integer", "minimum": 1, "maximum": most}, {"const": alternative}]})


WorldSize = Annotated[int | str, number_or("all", "world size", MAX_WORLD_SIZE)]
Iterations = Annotated[int | str, number_or("auto", "number of iterations", MAX_ITERATIONS)]
"""How many timed iterations a pass has, or ``auto``."""
EVERY = "every"


class Checks(NamedTuple):
    """Which results of a case are checked, if ``is_on``: of the first, the last and some timed
    samples, and of so many ``further`` calls after them; -1: of every timed sample."""

    is_on: bool
    further: int = 0

    @property
    def has_every(self) -> bool:
        return self.further < 0

    @property
    def text(self) -> str:
        """Return what is checked, in words."""
        if not self.is_on or not self.further:
            return "checked" if self.is_on else "unchecked"
        return "every checked" if self.has_every else f"{self.further} more checked"

    @property
    def plain(self) -> bool | int | str:
        """Return the value of a sweep file."""
        return EVERY if self.has_every else self.further or self.is_on


CHECKED, UNCHECKED = Checks(True), Checks(False)


def _checks(value: Any) -> Checks:
    if isinstance(value, bool):
        return Checks(value)
    if value in ("ends", EVERY):
        return Checks(True, -1 if value == EVERY else 0)
    if type(value) is int and 1 <= value <= MAX_ITERATIONS:
        return Checks(True, value)
    raise ValueError(f"{quote(value)} is no way to check; write true or \"ends\", \"{EVERY}\", a "
                     f"number of further calls from 1 to {MAX_ITERATIONS}, or false")


CheckAxis = Annotated[Checks, Checked(_checks, lambda: {"anyOf": [
    {"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": MAX_ITERATIONS},
    {"enum": ["ends", EVERY]}]}, lambda value: value.plain)]
"""Whose results are checked: true (the first, the last and a few between), a number (that many
calls after the timed ones, too), ``every`` timed sample, or false."""


def _sizes_of(item: Any) -> list[int]:
    """Return one size, or all of a range."""
    return _size_range(item) if isinstance(item, Mapping) else [_size(item)]


def _all_sizes(lists: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = tuple(size for sizes in lists for size in sizes)
    if len(sizes) > MAX_SIZES:
        raise ValueError(f"{len(sizes):,} sizes are more than {MAX_SIZES:,}")
    return sizes


def _size(item: Any) -> int:
    try:
        size = parse_bytes(item)
    except OverflowError:
        size = MAX_SIZE_BYTES + 1
    if size > MAX_SIZE_BYTES:
        raise ValueError(f"{quote(item)} is more than 16 TiB")
    return size


def _size_range(item: Mapping[str, Any]) -> list[int]:
    """Return the sizes of {from, to, factor} or {from, to, step}, both ends included."""
    keys = ("from", "to", "factor", "step")
    unknown = [key for key in item if key not in keys]
    if unknown:
        raise ValueError(f"a range of sizes: {unknown_name(unknown[0], keys)}")
    if "from" not in item or "to" not in item or ("factor" in item) == ("step" in item):
        raise ValueError('a range of sizes has "from", "to", and one of "factor" and "step"')
    first, last = _size(item["from"]), _size(item["to"])
    if first > last:
        raise ValueError(f'"from" ({first}) is greater than "to" ({last})')
    return _grow(first, last, item["factor"]) if "factor" in item else _walk(
        first, last, _size(item["step"]))


def _grow(first: int, last: int, factor: Any) -> list[int]:
    if type(factor) is not int or factor < 2:
        raise ValueError(f'"factor" is {quote(factor)}; write a whole number from 2')
    if first < 1:
        raise ValueError('"from" must be at least 1 with a "factor"')
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def _walk(first: int, last: int, step: int) -> list[int]:
    if step < 1:
        raise ValueError('"step" must be at least 1')
    count = (last - first) // step + 1
    if count > MAX_SIZES:
        raise ValueError(f"the range holds {count:,} sizes, more than {MAX_SIZES:,}")
    return list(range(first, last + 1, step))


def _sizes_schema() -> JsonSchema:
    size: JsonSchema = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
    by: JsonSchema = {
        "type": "object", "additionalProperties": False, "required": ["from", "to"],
        "properties": {"from": size, "to": size, "step": size,
                       "factor": {"type": "integer", "minimum": 2}},
    }
    return {"anyOf": [*size["anyOf"], by]}


Sizes = Annotated[Axis[Annotated[int, Checked(_sizes_of, _sizes_schema)]],
                  Then(_all_sizes)]
"""A size, a list of sizes, or a range; bytes, ranges written out."""


def _check_groups(value: Any) -> int | dict[str, int]:
    """Return the number of groups, or their keys without those of no effect."""
    if not isinstance(value, Mapping):
        if type(value) is int and value >= 1:
            return value
        raise ValueError(f'{quote(value)} is not a number of groups from 1; or write '
                         '{"size": 8}, {"stride": 8}, {"size": 4, "stride": 8} or '
                         '{"count": 16, "stride": 8}')
    if unknown := [key for key in value if key not in _OF_GROUPS]:
        raise ValueError(f"groups: {unknown_name(unknown[0], _OF_GROUPS)}")
    for key, number in value.items():
        if type(number) is not int or not 1 <= number <= MAX_WORLD_SIZE:
            raise ValueError(f'"{key}" of groups is {quote(number)}; write a whole number from 1 '
                             f"to {MAX_WORLD_SIZE}")
    if ("size" in value) == ("count" in value) and (value or {}).keys() != {"stride"}:
        raise ValueError('groups have "size" or "count", not both, and may have a "stride"')
    count, stride = value.get("count"), value.get("stride", 1)
    if count is not None and count % stride:
        raise ValueError(f'"count" ({count}) of groups is no multiple of "stride" ({stride}): '
                         "between the ranks of a group of that stride lie those of "
                         f"{stride - 1} others")
    if stride == 1 and "size" not in value:
        return count or 1
    return {key: value[key] for key in _OF_GROUPS if key in value and value[key] != (
        1 if key == "stride" else None)}


def _groups_schema() -> JsonSchema:
    number: JsonSchema = {"type": "integer", "minimum": 1}
    return {"anyOf": [number, {
        "type": "object", "additionalProperties": False, "minProperties": 1,
        "not": {"required": ["size", "count"]}, "properties": dict.fromkeys(_OF_GROUPS, number)}]}


Groups = Annotated[int | dict[str, int], Checked(_check_groups, _groups_schema)]
"""How many equal groups of consecutive ranks; or their size or number, and the ranks' stride."""


_OF_ARRIVAL = ("late", "by")


def _check_arrival(value: Any) -> ArrivalPattern:
    """Return whether ranks enter together, or who is late and by how much."""
    if value == TOGETHER.text:
        return TOGETHER
    if not isinstance(value, Mapping):
        raise ValueError(f'{quote(value)} is no arrival; write "{TOGETHER.text}" or '
                         '{"late": "last", "by": "250us"}')
    if unknown := [key for key in value if key not in _OF_ARRIVAL]:
        raise ValueError(f"arrival: {unknown_name(unknown[0], _OF_ARRIVAL)}")
    if missing := [key for key in _OF_ARRIVAL if key not in value]:
        raise ValueError(f'"{missing[0]}" of arrival is missing; write '
                         '{"late": "last", "by": "250us"}')
    late = value["late"]
    if late not in WHO and not (type(late) is int and 0 <= late < MAX_WORLD_SIZE):
        raise ValueError(f'"late" of arrival is {quote(late)}; write '
                         f"{', '.join(map(quote, WHO))} or the number of a rank")
    by_ns = parse_duration_ns(value["by"])
    if by_ns > MOST_NS:
        raise ValueError(f'"by" of arrival is {quote(value["by"])}, more than '
                         f"{duration_text(MOST_NS)}")
    return ArrivalPattern(late, by_ns)


def _arrival_schema() -> JsonSchema:
    return {"anyOf": [{"const": TOGETHER.text}, {
        "type": "object", "additionalProperties": False, "required": [*_OF_ARRIVAL],
        "properties": {"late": {"anyOf": [{"enum": [*WHO]}, {"type": "integer", "minimum": 0}]},
                       "by": {"anyOf": [{"type": "string"}, {"const": 0}]}}}]}


ArrivalAxis = Annotated[ArrivalPattern, Checked(
    _check_arrival, _arrival_schema, lambda value: value.plain)]
"""Whether ranks enter a call together, or which of them late and by how much."""


def _check_environment(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        raise ValueError(f'{quote(value)} is not a mapping; write {{"NCCL_ALGO": ["Ring"]}}')
    return {_variable(name): tuple(_text(name, item) for item in values_of(name, values))
            for name, values in value.items()}


def _variable(name: str) -> str:
    if _VARIABLE.fullmatch(name) is None:
        raise ValueError(f"{quote(name)} is not the name of an environment variable")
    if _RESERVED.fullmatch(name):
        raise ValueError(f"{name} belongs to the launcher and cannot be set for a worker: set it "
                         "where the job is started, one job for each value")
    if NCCL_TESTS_SPLIT.fullmatch(name):
        raise ValueError(f"{name}: {SPLIT_HINT}")
    return name


def _text(name: str, value: Any) -> str:
    if type(value) not in (str, int):
        why = f" ({YAML_SWITCHES})" if isinstance(value, bool) else ""
        raise ValueError(f'{name}: {quote(value)} is not text or a whole number; write it in '
                         f'"..."{why}')
    if "\0" in str(value):
        raise ValueError(f"{name}: a value cannot hold a NUL character")
    if holds_secret(name, str(value)) or masked(str(value), {}) != str(value):
        raise ValueError(f"{name} looks like a secret, and this file is kept with the results: "
                         "set it where the job is started, and name it in launch.pass_env")
    return str(value)


Environment = Annotated[dict[str, tuple[str, ...]], Checked(_check_environment, lambda: {
    "type": "object", "additionalProperties": one_or_many({"type": ["string", "integer"]})})]
"""Environment variable -> its values; several values are an axis."""


def _check_port(value: Any) -> tuple[int, int]:
    if isinstance(value, Mapping):
        if set(value) != {"from", "to"}:
            raise ValueError('a range of ports has exactly "from" and "to"')
        ports = (value["from"], value["to"])
    else:
        ports = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    if len(ports) != 2 or any(type(port) is not int or not 0 <= port <= 65535 for port in ports):
        raise ValueError(f"{quote(value)} is not a port; write 0 (any free one) to 65535")
    if ports[0] > ports[1]:
        raise ValueError(f'"from" ({ports[0]}) is greater than "to" ({ports[1]})')
    return ports


def _port_schema() -> JsonSchema:
    port: JsonSchema = {"type": "integer", "minimum": 0, "maximum": 65535}
    both: JsonSchema = {"type": "object", "additionalProperties": False,
                        "required": ["from", "to"], "properties": {"from": port, "to": port}}
    pair: JsonSchema = {"type": "array", "minItems": 2, "maxItems": 2, "items": port}
    return {"anyOf": [port, both, pair]}


Ports = Annotated[tuple[int, int], Checked(_check_port, _port_schema)]
"""First and last port that may be used; (0, 0) is any free one."""
