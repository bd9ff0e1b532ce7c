"""The sweep that a command of nccl-tests, OSU or ds_bench stands for; the options of ds_bench."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

from hpcbench.config.axes import BACKENDS, DTYPE_ALIASES, MAX_WORLD_SIZE, NCCL_TESTS_SPLIT, TORCH
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError, UsageError
from hpcbench.interop.compat.command_line import CommandLaunch, Program, split_command
from hpcbench.interop.compat.options import PROGRAM_NAMES, parse, to_sweep
from hpcbench.interop.compat.osu import PREFIX, osu_sweep
from hpcbench.launch.session import RANKS_WITHOUT_GPUS
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.records import dataclass
from hpcbench.texts import first_line, masked, valid
from hpcbench.units import format_bytes, plural

SCRIPTS: Mapping[str, str] = MappingProxyType({
    "ds_bench": "", "run_all.py": "", "all_reduce.py": "all_reduce",
    "all_gather.py": "all_gather", "all_to_all.py": "all_to_all", "broadcast.py": "broadcast",
    "reduce_scatter.py": "reduce_scatter", "pt2pt.py": "pt2pt"})
"""Program -> the operation that it measures; empty: by its options."""
_PROGRAMS = re.compile(
    r"[a-z_]+_perf(?:_mpi)?|" + PREFIX + r"\w+|" + "|".join(map(re.escape, SCRIPTS)))
_FEWEST_SAMPLES = 6
_MOST_CHARACTERS = 400
"""Characters of an error, which repeats words of the command."""
_SPLIT = re.compile(r"\s*(DIV|/|MOD|%)\s*(\d{1,9})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Translated:
    """A sweep for `check_config`, remarks (how to run it, then what is not carried over), ranks."""

    content: Mapping[str, Any]
    remarks: tuple[str, ...]
    ranks: int


def translate(text: str, ranks: int | None = None, file: str = "FILE") -> Translated:
    """Return the sweep of a command line; ``ranks`` replace those that the command starts.

    Raises UsageError in one line for another command."""
    try:
        return _translated(valid(text), ranks, file)
    except UsageError as error:
        message = " ".join(str(error).split())
        raise UsageError(message if len(message) <= _MOST_CHARACTERS else
                         f"{message[:_MOST_CHARACTERS]}...") from None


def _translated(text: str, ranks: int | None, file: str) -> Translated:
    program, launch = split_command(text, _PROGRAMS)
    program = replace(program, name=program.name.removesuffix("_mpi"))
    content, ranks, remarks = _sweep(program, launch, ranks)
    env, of_env = _environment(launch.env, content)
    for block in content["benchmarks"]:
        block |= {"env": env} if env else {}
        if "size" in block:
            block["size"] = _readable(block["size"])
    check_config(content, program.name)
    lost = [f"left out: {words}" for words in launch.lost(ranks)]
    if any(word.startswith("--container") for word in launch.kept):
        lost.append("the container of the job needs hpcbench")
    every = (f"Run it: {launch.command(ranks, '-c', file)}", *remarks, *of_env, *lost)
    return Translated(content, tuple(masked(remark, {}) for remark in every), ranks)


def _readable(size: Any) -> Any:
    """Return sizes with their units; those below 1 KiB stay numbers."""
    if isinstance(size, dict):
        return {key: _readable(item) if key in ("from", "to", "step") else item
                for key, item in size.items()}
    return format_bytes(size) if isinstance(size, int) and size >= 2**10 else size


def _sweep(
    program: Program, launch: CommandLaunch, ranks: int | None,
) -> tuple[dict[str, Any], int, tuple[str, ...]]:
    """Return the sweep without variables, the ranks of the job, and remarks on lost options."""
    name, words = program.name, program.words
    if name in PROGRAM_NAMES:
        return _of_nccl_tests(program, launch, ranks)
    if name not in SCRIPTS and not name.startswith(PREFIX):
        raise UsageError(f"{name}: nccl-tests has {', '.join(PROGRAM_NAMES)}")
    started = ranks or _ranks(name, launch, None)
    content, remarks = (ds_bench_sweep if name in SCRIPTS else osu_sweep)(name, words, started)
    return content, started, remarks


def _of_nccl_tests(
    program: Program, launch: CommandLaunch, ranks: int | None,
) -> tuple[dict[str, Any], int, tuple[str, ...]]:
    options = parse(program.name, program.words)
    if options.is_help:
        raise UsageError(f"{program.name}: the command prints its help, and measures nothing")
    started = ranks or _ranks(program.name, launch, 1) * options.ranks_per_process
    if started > MAX_WORLD_SIZE:
        raise UsageError(f"{program.name}: {started:,} ranks are more than {MAX_WORLD_SIZE:,}")
    content, remarks = to_sweep(options, started)
    n_samples = content["measure"]["iterations"] * content["measure"]["passes"]
    few = () if n_samples >= _FEWEST_SAMPLES else (
        f"{plural(n_samples, 'sample')} of each size, as there: an interval needs "
        f"{_FEWEST_SAMPLES}, so raise measure.iterations",)
    if "J" in options.given:
        few = (*few, f"-J {options.text('J')}: export the results to nccl-tests-json")
    if started == 1 and not launch.launcher:
        few = (*few, "one rank, as that command starts; without a GPU hpcbench.compat starts "
               f"{RANKS_WITHOUT_GPUS}: --ranks {RANKS_WITHOUT_GPUS} writes such a job")
    return content, started, (*few, *remarks)


def _ranks(name: str, launch: CommandLaunch, alone: int | None) -> int:
    """Return the processes that the launcher starts; ``alone`` without one, None: not known."""
    if launch.processes is not None:
        return launch.processes
    if alone is not None and not launch.launcher:
        return alone
    where = launch.name or name
    raise UsageError(f"{where}: the command does not say how many processes there are; give "
                     "--ranks N")


def _environment(
    given: Mapping[str, str], content: dict[str, Any],
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a block may set, and why others are left out."""
    env: dict[str, str] = {}
    remarks = []
    for name, value in given.items():
        if NCCL_TESTS_SPLIT.fullmatch(name):
            remarks += _take_groups(name, value, content)
            continue
        try:
            check_config({"benchmarks": [{**content["benchmarks"][0], "env": {name: value}}]}, "")
        except ConfigError as error:
            _, _, why = first_line(str(error)).partition("env: ")
            remarks.append(f"left out: variable {why or name}")
        else:
            env[name] = value
    return env, tuple(remarks)


def _take_groups(name: str, value: str, content: dict[str, Any]) -> list[str]:
    """Give the block its groups; return a remark where there is no such way to divide ranks."""
    match = _SPLIT.fullmatch(value) if name == "NCCL_TESTS_SPLIT" else None
    if match is None:
        return [f"left out: {name}={value}; key groups divides ranks"]
    key = "size" if match[1].upper() in ("DIV", "/") else "stride"
    for block in content["benchmarks"]:
        block["groups"] = {key: int(match[2])}
    return []


OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "pt2pt")
_BY_DEFAULT = ("all_reduce", "all_gather", "all_to_all", "broadcast", "pt2pt")
_PAIR = "pt2pt"
_ONE_SIZE = 2**30
_MOST_POWER = 40
_LOST: Mapping[str, str] = MappingProxyType({
    "bw_unit": "rates are in GB/s", "raw": "plain numbers are in summary.csv",
    "debug": "results are checked", "dist": "torch.distributed is measured",
    "local_rank": "the launcher numbers ranks",
    "alltoallv": "parts are equal; uneven parts: key uneven",
    "async_op": "calls follow each other, as in mode pipelined"})
"""Option -> why it has no effect."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}")


def ds_bench_sweep(
    program: str, words: Sequence[str], ranks: int,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the sweep of a command of ds_bench, and a remark for each option that is lost.

    Raises UsageError in one line."""
    given = _parser(program).parse_args([*words])
    if given.help:
        raise UsageError(f"{program}: the command prints its help, and measures nothing")
    wanted = [name for name in OPERATIONS if getattr(given, name) or given.all]
    wanted = [SCRIPTS[program]] if SCRIPTS[program] else wanted or [*_BY_DEFAULT]
    blocks = [*_ds_blocks(program, given, wanted, ranks)]
    trials = given.trials
    measure = {"mode": "pipelined", "batch": trials, "warmup": -(-given.warmups // trials)}
    return {"name": program.removesuffix(".py"), "measure": measure, "benchmarks": blocks}, (
        *(f"--{name.replace('_', '-')}: no effect: {why}" for name, why in _LOST.items()
          if getattr(given, name) not in (None, False)),
        *_ds_remarks(given, wanted, ranks))


def _parser(program: str) -> ArgumentParser:
    parser = _Parser(prog=program, add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    for name in (*OPERATIONS, "all", "scan", "raw", "debug", "async_op", "alltoallv"):
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", dest=name)
    parser.add_argument("--trials", type=_between(1, 100_000), default=50)
    parser.add_argument("--warmups", "--warmup", type=_between(0, 1_000_000), default=5)
    parser.add_argument("--minsize", type=_between(0, _MOST_POWER), default=1)
    parser.add_argument("--maxsize", type=_between(0, _MOST_POWER), default=24)
    parser.add_argument("--mem-factor", type=float)
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--dtype", type=_dtype, default="fp32")
    parser.add_argument("--backend", type=_backend, default="nccl")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--dist", choices=("deepspeed", "torch"))
    parser.add_argument("--bw-unit", choices=("Gbps", "GBps"))
    return parser


def _between(least: int, most: int) -> Any:
    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text[:12]) <= most):
            raise ValueError
        return int(text)

    number.__name__ = f"number from {least} to {most}"  # which argparse names in its message
    return number


def _dtype(text: str) -> str:
    name = DTYPE_ALIASES.get(text, text)
    if name not in DTYPE_BYTES:
        raise ValueError
    return name


def _backend(text: str) -> str:
    if text not in BACKENDS and not re.fullmatch("[a-z]{1,20}", text):
        raise ValueError
    return text if text in BACKENDS else f"{TORCH}{text}"


def _ds_blocks(
    program: str, given: Namespace, wanted: Sequence[str], ranks: int,
) -> Iterator[dict[str, Any]]:
    """Yield a block for each operation; the tensor has 2, 4, ... elements times the ranks."""
    first, last = max(given.minsize, 1), given.maxsize - 1
    if given.scan and first > last:
        raise UsageError(f"{program}: --scan has no size: --maxsize {given.maxsize} is the power "
                         f"of 2 behind the last, --minsize {given.minsize} the first")
    shared = {"backend": given.backend, "dtype": given.dtype,
              **({"device": given.device} if given.device else {})}
    for name in wanted:
        unit = ranks * DTYPE_BYTES[given.dtype] * (ranks if name == "all_gather" else 1)
        size: Any = {"from": unit * 2**first, "to": unit * 2**last, "factor": 2}
        if not given.scan:
            size = _ONE_SIZE
        elif first == last:
            size = unit * 2**first
        if name == _PAIR:
            yield {"kind": "hardware", "test": "pairs", "what": "bandwidth",
                   "messages": given.trials, "world_size": 2, **shared, "size": size}
        else:
            yield {"kind": "collective", "collective": name, **shared, "size": size}


def _ds_remarks(given: Namespace, wanted: Sequence[str], ranks: int) -> Iterator[str]:
    if given.scan and "all_gather" in wanted:
        yield f"size of all_gather: of all {ranks} ranks together, {ranks} x that of ds_bench"
    if not given.scan:
        factor = "" if given.mem_factor is None else f" {given.mem_factor:g}"
        yield (f"--mem-factor{factor}: without --scan ds_bench sends one message that fills this "
               "share of a GPU's memory; here it has 1 GiB: set size")
    elif given.mem_factor is not None:
        yield f"--mem-factor {given.mem_factor:g}: no effect: --scan does not read it"
