"""The options of nccl-tests: the meaning of a command line, and the sweep that measures it.

Defaults are those of nccl-tests 2.19.6 (``main`` of its src/common.cu), which also reads
abbreviated long names, ``-n20`` and ``--iters=20``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from getopt import GetoptError, gnu_getopt
from types import MappingProxyType
from typing import Any

from hpcbench.errors import UsageError
from hpcbench.interop.formats.reading.names import PROGRAMS, TYPES
from hpcbench.operations.collectives import CollectiveSpec, collective_spec
from hpcbench.records import dataclass

PROGRAM_NAMES: Mapping[str, str] = MappingProxyType({
    program: collective for collective, program in PROGRAMS.items()})
"""Program of nccl-tests -> our name of its collective."""
DEFAULT_TIMEOUT_S = 600.0
"""Limit of a case without -T: nccl-tests has none, and would hang."""
ALL = "all"
ALL_ROOTS = -1
_MOST_CALLS = 100_000
"""Calls of one sample; more are divided among several."""
_SIZE = re.compile(r"\s*(\d+\.?\d*(?:[eE]\+?\d+)?|\.\d+)\s*(?:([KMGkmg])(?:i?[Bb])?)?\s*")
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_SAME_BYTES: Mapping[str, str] = MappingProxyType({
    "int8": "uint8", "uint32": "int32", "uint64": "int64"})
"""Types that hpcbench lacks -> the one of as many bytes that is measured instead."""
_NO_TYPES = ("f8e4m3", "f8e5m2")
_OPERATORS = ("sum", "prod", "max", "min", "avg")
_NO_OPERATORS = ("mulsum",)


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its letter, long name, form of its value, default and meaning."""

    letter: str
    name: str
    form: str
    default: int | str
    meaning: str


OPTIONS = (
    Option("t", "nthreads", "N", 1, "threads of a process: N x -g ranks without a launcher"),
    Option("g", "ngpus", "N", 1, "GPUs of a thread; left out without a launcher: all of the node"),
    Option("b", "minbytes", "SIZE", "32M", "smallest message; K, M and G are powers of 1024"),
    Option("e", "maxbytes", "SIZE", "32M", "largest message"),
    Option("i", "stepbytes", "SIZE", "1M", "bytes from one message to the next"),
    Option("f", "stepfactor", "N", 1, "factor from one message to the next, instead of -i"),
    Option("n", "iters", "N", 20, "calls of a message, back to back, as one sample"),
    Option("m", "agg_iters", "N", 1, "as many times more calls; they are not aggregated"),
    Option("w", "warmup_iters", "N", 1, "calls before them, rounded up to whole samples"),
    Option("N", "run_cycles", "N", 1, "samples of each message; one table of their medians"),
    Option("p", "parallel_init", "0|1", 0, "no effect: processes always start in parallel"),
    Option("c", "check", "N", 1, "check that many iterations; 0: do not"),
    Option("o", "op", "OPERATOR", "sum", "sum, prod, min, max, avg, or all of them"),
    Option("d", "datatype", "TYPE", "float", "uint8, int32, int64, half, bfloat16, float, double, "
           "or all of them"),
    Option("r", "root", "N", 0, "root; -1: all of them in turn"),
    Option("z", "blocking", "0..3", 0, "other than 0: wait after each call (of -m)"),
    Option("y", "stream_null", "0|1", 0, "no effect: torch chooses the stream"),
    Option("T", "timeout", "SECONDS", 0, "limit of a message; 0: 600"),
    Option("G", "cudagraph", "N", 0, "other than 0: replay a CUDA graph"),
    Option("C", "report_cputime", "0|1", 0, "no effect: the whole call is reported"),
    Option("a", "average", "0..3", 1, "no effect: the slowest process is reported, as with -a 3"),
    Option("R", "local_register", "0|1|2", 0, "no effect: torch registers buffers"),
    Option("x", "cta_policy", "0|1|2", 0, "no effect: set NCCL_CTA_POLICY instead"),
    Option("D", "device_implementation", "N", 0, "no effect: NCCL's own kernels are measured"),
    Option("V", "device_cta_count", "N", 16, "no effect: NCCL's own kernels are measured"),
    Option("J", "output_file", "FILE", "", "also write nccl-tests' JSON to this file"),
    Option("S", "report_timestamps", "0|1", 0, "no effect: rows have no date"),
    Option("M", "memory", "0|1", 0, "no effect: no report of memory"),
    Option("u", "unalign", "N", 0, "no effect: buffers begin where torch allocates them"),
    Option("I", "per_iter_timing", "0|1", 0, "wait after each call; samples are in the JSON only"),
    Option("K", "per_iter_skip", "N", 0, "no effect: no sample is left out"),
)
"""The options of every program, in nccl-tests' order; -h and --help are no rows."""
_BY_LETTER = {f"-{one.letter}": one for one in OPTIONS}
_BY_NAME = {f"--{one.name}": one for one in OPTIONS}
_NOTHING = "no effect: "
"""The beginning of the meaning of an option that changes nothing here."""


@dataclass(frozen=True, slots=True)
class NcclTestsOptions:
    """A command line of one program; sizes in bytes, ``values`` as of `OPTIONS`, by letter.

    ``given`` are the letters that were typed. ``is_help``: nothing but the help is wanted."""

    program: str
    values: Mapping[str, int | str]
    given: frozenset[str] = frozenset()
    is_help: bool = False

    @property
    def spec(self) -> CollectiveSpec:
        return collective_spec(PROGRAM_NAMES[self.program])

    def number(self, letter: str) -> int:
        return int(self.values[letter])

    def text(self, letter: str) -> str:
        return str(self.values[letter])

    @property
    def ranks_per_process(self) -> int:
        """Return how many ranks nccl-tests would start in each process."""
        return self.number("t") * self.number("g")


def parse(program: str, argv: Sequence[str]) -> NcclTestsOptions:
    """Return the options in the words after a program's name. Raises UsageError in one line."""
    if program not in PROGRAM_NAMES:
        raise UsageError(f"{program}: there are {', '.join(PROGRAM_NAMES)}")
    letters = "".join(f"{one.letter}:" for one in OPTIONS) + "h"
    try:
        pairs, more = gnu_getopt(list(argv), letters, [f"{one.name}=" for one in OPTIONS] + [
            "help"])
    except GetoptError as error:
        raise UsageError(f"{program}: {error.msg}; --help lists the options") from None
    if more:
        raise UsageError(f"{program}: {more[0]}: no argument is taken; --help lists the options")
    is_help = any(word in ("-h", "--help") for word, _ in pairs)
    typed = {one.letter: (word, one, text) for word, text in pairs
             if (one := _BY_LETTER.get(word) or _BY_NAME.get(word))}
    values = {one.letter: _value(one, str(one.default)) for one in OPTIONS}
    if not is_help:
        for letter, (word, one, text) in typed.items():
            try:
                values[letter] = _value(one, text)
            except ValueError as error:
                raise UsageError(f"{program}: {word} {text}: {error}") from None
    options = NcclTestsOptions(program, values, frozenset(typed), is_help)
    if not is_help and (problem := next(_problems(options), None)):
        raise UsageError(f"{program}: {problem}")
    return options


def _value(option: Option, text: str) -> int | str:
    if option.form == "SIZE":
        return _size(text)
    if option.letter == "d":
        return _one_of(text, (*TYPES.values(), *_SAME_BYTES, ALL), _NO_TYPES)
    if option.letter == "o":
        return _one_of(text, (*_OPERATORS, ALL), _NO_OPERATORS)
    if option.form == "FILE":
        return text
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("no whole number") from None


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("no size; write 8, 64K, 32M or 1G")
    size = float(match[1]) * _UNITS[(match[2] or "").lower()]
    if size >= 2**63:
        raise ValueError("is too large")
    return int(size)


def _one_of(text: str, allowed: Sequence[str], refused: Sequence[str]) -> str:
    """Return one of the names; of ``refused`` ones it depends on the program whether they matter.
    """
    if text not in (*allowed, *refused):
        raise ValueError(f"allowed are {', '.join(allowed)}")
    return text


def _problems(options: NcclTestsOptions) -> Iterator[str]:
    least = {"t": 1, "g": 1, "n": 1, "m": 1, "w": 0, "N": 0, "r": ALL_ROOTS, "c": 0, "T": 0, "G": 0}
    yield from (f"-{letter} {options.number(letter)}: must be at least {number}"
                for letter, number in least.items() if options.number(letter) < number)
    first, last, step = (options.number(letter) for letter in "bei")
    if first > last:
        yield f"-b {first} is more than -e {last} bytes"
    if first < last and (first if options.number("f") > 1 else step) == 0:
        yield "sizes would never grow: -b is 0 with -f, or -i is 0"
    if options.text("d") in _NO_TYPES:
        yield f"-d {options.text('d')}: hpcbench has {', '.join(TYPES.values())}"
    if options.spec.has_op and options.text("o") in _NO_OPERATORS:
        yield f"-o {options.text('o')}: hpcbench has {', '.join(_OPERATORS)}"


def to_sweep(
    options: NcclTestsOptions, ranks: int, backend: str = "nccl",
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the sweep that measures the same, and a remark for each option of another meaning.

    The mapping is for `check_config`; ``ranks`` are those of the job. A remark begins with the
    option, and holds none of the words by which readers of nccl-tests' text find its lines."""
    measure, block = _measure(options), _block(options, ranks, backend)
    timeout_s = float(options.number("T") or DEFAULT_TIMEOUT_S)
    sweep = {"name": options.program, "measure": measure, "launch": {"timeout_s": timeout_s},
             "benchmarks": [block]}
    return sweep, tuple(_remarks(options, measure))


def _measure(options: NcclTestsOptions) -> dict[str, Any]:
    """Return the section ``measure``: as there a sample is all calls, or each call if it waits."""
    n_calls, together = options.number("n"), options.number("m")
    if not (options.number("z") or options.number("I")):
        n_calls, together = -(-n_calls * together // _MOST_CALLS), min(
            n_calls * together, _MOST_CALLS)
    warmup = -(-options.number("w") // together)
    batch = {"mode": "pipelined", "batch": together} if together > 1 else {"mode": "isolated"}
    return {"warmup": warmup, "iterations": n_calls,
            "validate": _checks(options.number("c")), **batch, "passes": options.number("N") or 1}


def _checks(iterations: int) -> bool | int:
    """Return the key ``check``: one iteration is among those that are checked anyway."""
    return iterations if iterations > 1 else bool(iterations)


def _block(options: NcclTestsOptions, ranks: int, backend: str) -> dict[str, Any]:
    spec, dtype, root = options.spec, options.text("d"), options.number("r")
    first, last = options.number("b"), options.number("e")
    by = {"factor": options.number("f")} if options.number("f") > 1 else {
        "step": options.number("i")}
    types = [*TYPES] if dtype == ALL else [
        ours for ours, theirs in TYPES.items() if theirs == _SAME_BYTES.get(dtype, dtype)]
    block: dict[str, Any] = {
        "kind": "collective", "collective": spec.name, "backend": backend,
        "dtype": types if dtype == ALL else types[0], "in_place": [*(spec.in_place or ())],
        "size": first if first == last else {"from": first, "to": last, **by}}
    if spec.has_op:
        operator = options.text("o")
        block["op"] = [*_OPERATORS] if operator == ALL else operator
    if spec.has_root:
        block["root"] = [*range(ranks)] if root == ALL_ROOTS else root
    if options.number("G"):
        block["cuda_graph"] = True
    return block


def _remarks(options: NcclTestsOptions, measure: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each option that has another meaning here."""
    number = options.number
    for option in OPTIONS:
        letter, value = option.letter, options.values[option.letter]
        is_usual = value == 3 or letter not in options.given if letter == "a" else (
            value == option.default)
        if option.meaning.startswith(_NOTHING) and not is_usual:
            yield f"-{letter} {value}: {option.meaning}"
    if number("m") > 1:
        yield f"-m {number('m')}: calls follow each other, they are not aggregated"
    calls = measure["warmup"] * measure.get("batch", 1)
    if "w" in options.given and calls != number("w"):
        yield f"-w {number('w')}: {calls} calls, whole samples"
    if number("N") != 1:
        yield (f"-N {number('N')}: one table of medians over {measure['passes']}"
               f"{' (not for ever)' if number('N') == 0 else ''}")
    if number("z") in (2, 3):
        yield f"-z {number('z')}: as -z 1, processes line up before each call"
    if number("G"):
        yield f"-G {number('G')}: each call is captured, and launched as often as -n says"
    if number("I"):
        yield "-I 1: no further columns; the JSON (-J) has each sample"
    yield from _of_types(options)


def _of_types(options: NcclTestsOptions) -> Iterator[str]:
    dtype, operator = options.text("d"), options.text("o")
    if dtype in _SAME_BYTES:
        yield f"-d {dtype}: {_SAME_BYTES[dtype]}, of as many bytes, is measured"
    if dtype == ALL:
        yield f"-d all: without {', '.join((*_SAME_BYTES, *_NO_TYPES))}"
    if operator == ALL and options.spec.has_op:
        yield f"-o all: without {', '.join(_NO_OPERATORS)}"
