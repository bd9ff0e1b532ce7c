"""Tables of other programs, as they were read: nothing is computed, nothing of an environment kept.

Times are microseconds and rates GB/s (1e9 bytes/s) where names do not state otherwise; a number is
as it was printed, with how far the digits leave it open (`Printed`). What rows of hpcbench in
nccl-tests' form do not say stands in a line that others skip (`OwnTable`): nccl-tests measures on
nccl and GPUs, the mean of calls back to back; hpcbench may not. It is checked as a
sweep file is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationError

from hpcbench import __version__
from hpcbench.config.section import Backend, Cache, Count, Device, Mode, Section, Text, Warmup
from hpcbench.errors import HpcbenchError
from hpcbench.operations.arrival import TOGETHER, ArrivalPattern
from hpcbench.plan.case import DEFAULT_MODE
from hpcbench.records import dataclass
from hpcbench.texts import to_json
from hpcbench.units import digits

_NUMBER = re.compile(r"([-+]?)(\d+)(?:\.(\d*))?(?:[eE]([-+]?\d{1,3}))?")
_ROUNDING = 1e-9
"""Share by which the last bits of a sum or product of doubles may be off."""


_GREATEST = 1e300
_MOST_DIGITS, _TOO_MUCH = 19, 10**18
_HALVES = tuple(10.0 ** -decimals / 2 * (1 + 1e-6) for decimals in range(_MOST_DIGITS))


class Printed(NamedTuple):
    """A number that was printed; before rounding it was within ``half`` of ``value``.

    A tuple, as a long log has a million of them."""

    value: float
    half: float

    def __str__(self) -> str:
        return digits(self.value, 6)

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half

    def scaled(self, factor: float) -> Printed:
        return Printed(self.value * factor, self.half * factor)

    def widened(self, half: float) -> Printed:
        """Return the number with at least this half: such as for a program that cut digits off."""
        return Printed(self.value, max(self.half, half))

    def may_be(self, low: float, high: float) -> bool:
        """Return whether the number may have been one from ``low`` to ``high``."""
        return self.low <= high and low <= self.high


def printed(text: str) -> Printed:
    """Return a number with half a unit of its last digit. Raises ValueError for anything else."""
    before, _, decimals = text.partition(".")
    if before and (before + decimals).isdecimal() and len(text) < _MOST_DIGITS:
        value = float(text)  # as most numbers of a table: quicker than the pattern
        return Printed(value, _HALVES[len(decimals)] + value * _ROUNDING)
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError("no number")
    value, exponent = float(text), int(match[4] or 0) - len(match[3] or "")
    if abs(value) > _GREATEST or exponent > 300:
        raise ValueError("too large")
    step = 10.0 ** max(exponent, -300)
    return Printed(value, step / 2 * (1 + 1e-6) + abs(value) * _ROUNDING)


def is_no_number(text: str) -> bool:
    """Return whether a program prints so what it could not divide: ``nan``, ``-nan``, ``inf``."""
    return text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


def printed_or_none(text: str) -> Printed | None:
    """Return a number; None for ``N/A``, ``nan`` and ``inf``. Raises ValueError for others."""
    return None if text.strip().lower() == "n/a" or is_no_number(text) else printed(text)


def whole(value: object) -> int:
    """Return a whole number from 0, of a text or of JSON. Raises ValueError for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _MOST_DIGITS:
        return int(value)
    if isinstance(value, Printed) and value.value.is_integer():  # nccl-tests: "nwrong":0.000000
        value = int(value.value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_MUCH:
        return value
    raise ValueError("no whole number")


def whole_or_none(value: object) -> int | None:
    """Return `whole` of a value that may be missing. Raises ValueError."""
    return None if value is None else whole(value)


ELEMENT_BYTES: Mapping[str, int] = {
    "int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "half": 2, "bfloat16": 2, "float16": 2, "int16": 2,
    "float": 4, "float32": 4, "int32": 4, "uint32": 4, "int": 4,
    "double": 8, "float64": 8, "int64": 8, "uint64": 8, "long": 8,
}
"""Element type as nccl-tests and PARAM write it -> bytes."""


@dataclass(frozen=True, slots=True)
class PrintedForm:
    """One measurement of a row: out of place, in place, or the only one (``in_place`` None).

    ``wrong`` counts wrong elements, None where nothing was checked. ``low_us`` to ``high_us`` are
    the extremes of the times whose mean ``time_us`` is, ``percentiles_us`` in order of their share.
    ``odd`` are values that are no numbers, as printed, such as "busbw nan"."""

    in_place: bool | None = None
    time_us: Printed | None = None
    algbw: Printed | None = None
    busbw: Printed | None = None
    wrong: int | None = None
    low_us: Printed | None = None
    high_us: Printed | None = None
    percentiles_us: tuple[Printed, ...] = ()
    odd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommRow:
    """One size of a table of communication: ``count`` in elements, ``size_bytes`` as printed.

    ``passed`` is the result of a check of the whole row, None without one. ``number`` identifies a
    single operation, alike on all ranks of its communicator; None for a mean."""

    line: int
    size_bytes: int
    halves: tuple[PrintedForm, ...]
    count: int | None = None
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    iterations: int | None = None
    messages_per_s: Printed | None = None
    passed: bool | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """A rank as nccl-tests lists it."""

    rank: int
    group: int
    host: str
    device: str


@dataclass(frozen=True, slots=True)
class CommTable:
    """A table of one collective.

    Attributes:
        program: whose format it is.
        path: the file, as it was named.
        line: of the first row or heading, 0 of a JSON document.
        collective: our name of it; "" where the table does not name it.
        version: of the program, "" where it is not stated.
        rows: in the file's order.
        ranks: of a group, as the file states them; None where it does not.
        devices: the lines of nccl-tests that list them.
        iterations: timed calls of a row, None where not stated.
        warmup: calls before them, 0 where none are stated.
        step_bytes: difference of neighbouring sizes, None where they grow by a factor.
        average: the mean bus bandwidth that the table ends with.
        failures: what the program itself calls failed, in words of ours.
        is_too_slow: whether it says that the average is below NCCL_TESTS_MIN_BW.
        out_of_bounds: wrong values of the whole table, None where not stated.
        old_columns: in which way its columns are those of another version; "" if they are not.
        damaged: lines that begin like a row and are none, with the count of their fields.
        is_cut: whether it has a heading, and not the end that belongs to it.
        is_sweep: whether sizes are to rise.
        timed_rates: whether rates are those of the printed times.
        is_uneven: whether parts of different sizes were exchanged.
        floors_counts: whether a count is of a part that was rounded down to whole elements.
        label: distinguishes tables of one collective: a communicator, or a node.
        hpcbench: the version of hpcbench that wrote it in nccl-tests' form; "" of others.
        own: how hpcbench says that it measured; None where it does not.
        backend: the library that a title names: mpi or nccl; "" where it names none.
        device: cpu or cuda, for memory of a GPU of any vendor; "" where it is not stated.
        communicator: the id of the communicator whose single operations these are, "" of means.
        rank: the rank that reports them, None where not stated.
        started: when the program began, as it states it; "" where it does not.
        lines: of ``average`` and ``out_of_bounds``, where they have one.
        counted: the list of a JSON document whose items, from 1, stand for the lines of rows."""

    program: str
    path: str
    line: int
    collective: str
    rows: tuple[CommRow, ...]
    version: str = ""
    ranks: int | None = None
    devices: tuple[DeviceLine, ...] = ()
    iterations: int | None = None
    warmup: int = 0
    step_bytes: int | None = None
    average: Printed | None = None
    failures: tuple[str, ...] = ()
    is_too_slow: bool = False
    out_of_bounds: int | None = None
    old_columns: str = ""
    damaged: tuple[tuple[int, int], ...] = ()
    is_cut: bool = False
    is_sweep: bool = True
    timed_rates: bool = True
    is_uneven: bool = False
    floors_counts: bool = False
    label: str = ""
    hpcbench: str = ""
    own: OwnTable | None = None
    backend: str = ""
    device: str = ""
    communicator: str = ""
    rank: int | None = None
    started: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    counted: str = ""


@dataclass(frozen=True, slots=True)
class MatrixTable:
    """A test case of nvbandwidth: ``matrix`` from row to column, None where there is no number."""

    program: ClassVar[str] = "nvbandwidth"
    counted: ClassVar[str] = "testcases"
    path: str
    name: str
    status: str
    description: str
    matrix: tuple[tuple[Printed | None, ...], ...]
    total: Printed | None
    least: Printed | None
    greatest: Printed | None
    average: Printed | None


@dataclass(frozen=True, slots=True)
class ProductRow:
    """A row of DDLB: a product of m x k and k x n. Times in ms.

    ``ranks``, and whether each call began after a barrier (``is_lined_up``): None where not stated.
    """

    line: int
    implementation: str
    option: str
    dtype: str
    m: int
    n: int
    k: int
    mean_ms: Printed
    std_ms: Printed | None
    least_ms: Printed
    greatest_ms: Printed
    tflops: Printed
    passed: bool | None
    ranks: int | None = None
    is_lined_up: bool | None = None


@dataclass(frozen=True, slots=True)
class ProductTable:
    """A CSV file of DDLB, or a part of a long one."""

    program: ClassVar[str] = "DDLB"
    counted: ClassVar[str] = ""
    path: str
    rows: tuple[ProductRow, ...]


@dataclass(frozen=True, slots=True)
class NodeTable:
    """A line of SuperBench: the numbers of one node by ``benchmark/metric:rank``."""

    program: ClassVar[str] = "SuperBench"
    path: str
    line: int
    node: str
    metrics: Mapping[str, Printed]


ForeignTable: TypeAlias = CommTable | MatrixTable | ProductTable | NodeTable


PROGRAM = "hpcbench"
MOST_TEXT = 200
MARK = "layout of nccl-tests"
OWN_LINE = r"hpcbench (?P<own>[^\s,]+, run .*)"
_OF_CASE = {"env", "cuda_graph", "arrival"}
_OWN = re.compile(rf"([^\s,]{{1,40}}), run .*?{MARK}(?:; (\{{.*\}}))?\s*$")
"""Version, run, title, and the facts as JSON, which the first versions did not write."""
_SEARCHED = re.compile("time|Avg|Rank|NVIDIA|Out of bounds|out-of-place|FAILED|Test ")
"""Words by which readers find headers, totals and failures: values hold them escaped."""


def _plain(number: Any) -> Any:
    """Return the value of a number that was read from JSON with its digits (`Printed`)."""
    return number[0] if isinstance(number, list) and number else number


class OwnFinding(Section):
    """A finding on the run, by the fields of `reduce.results.Finding`."""

    code: Annotated[str, Field(pattern=r"^HB\d{3}$")]
    scope: Literal["run", "note"]
    message: Annotated[str, Field(max_length=MOST_TEXT)]
    share: Annotated[Annotated[float, Field(ge=0, le=1)] | None, BeforeValidator(_plain)] = None


def _arrival(value: Any) -> ArrivalPattern:
    return value if isinstance(value, ArrivalPattern) else ArrivalPattern.from_text(str(value))


class OwnTable(Section):
    """How the rows of a table were measured, by the fields of `plan.case.Case`.

    ``printed_by`` are the programs that printed imported times, ``is_mean``: means of ``batch``
    calls, 1 where it is not known, in place of medians. ``only_in_place`` and
    ``only_out_of_place`` are rows (`row_key`) with a result of one place: the other half is a copy
    of it, or no number.
    ``faults`` and ``findings`` are those by which the run is not to be quoted."""

    backend: Backend
    device: Device
    mode: Mode = DEFAULT_MODE
    warmup: Warmup = 0
    batch: Count = 1
    env: tuple[tuple[Text, str], ...] = ()
    cuda_graph: bool = False
    arrival: Annotated[ArrivalPattern, PlainValidator(_arrival), PlainSerializer(
        lambda value: value.text)] = TOGETHER
    buffers: Cache = "warm"
    asynchronous: bool = False
    printed_by: Annotated[str, Field(max_length=MOST_TEXT)] = ""
    is_mean: bool = False
    only_in_place: tuple[Text, ...] = ()
    only_out_of_place: tuple[Text, ...] = ()
    faults: tuple[Text, ...] = ()
    findings: tuple[OwnFinding, ...] = ()

    @property
    def case_fields(self) -> dict[str, Any]:
        """Return further fields of a case."""
        return {name: getattr(self, name) for name in _OF_CASE}

    @property
    def unusual(self) -> dict[str, Any]:
        """Return `case_fields` that differ from the usual, as plain values."""
        return self.model_dump(include=_OF_CASE, exclude_defaults=True)

    def without_copies(self, row: CommRow) -> CommRow:
        """Return a row with the halves that have a result of their own."""
        key = row_key(row.size_bytes, row.dtype, row.redop or "none",
                      -1 if row.root is None else row.root)
        other = (False if key in self.only_in_place else
                 True if key in self.only_out_of_place else None)
        return replace(row, halves=tuple(
            half for half in row.halves if other is None or half.in_place is not other))


def row_place(line: int, counted: str) -> str:
    """Return ``line 3``, or ``results[2]`` of the third of the items that are ``counted``."""
    return f"{counted}[{line - 1}]" if counted else f"line {line}"


def row_key(*fields: object) -> str:
    """Return a row's name within its table, by its size, type, operator and root as printed."""
    return "/".join(map(str, fields))


def own_line(title: str, facts: Mapping[str, Any], *, run_id: str) -> str:
    known = _SEARCHED.sub(lambda word: f"\\u{ord(word[0][0]):04x}{word[0][1:]}", to_json(facts))
    known = f"; {known}" if facts else ""
    return f"hpcbench {__version__}, run {run_id}: {title}; {MARK}{known}"


def read_own(text: str) -> tuple[str, OwnTable | None]:
    """Return the version of hpcbench in a line, and its facts; None where it has none.

    Raises ValueError for facts that this version does not know."""
    match = _OWN.match(text)
    if match is None:
        raise ValueError("no line of a table of hpcbench")
    return match[1], own_facts(match[2]) if match[2] else None


def own_facts(text: str | bytes) -> OwnTable:
    """Return the facts of a JSON text. Raises ValueError for unknown ones."""
    try:
        return OwnTable.model_validate_json(text)
    except (ValidationError, HpcbenchError) as error:
        raise ValueError("facts of a table that are not known") from error
