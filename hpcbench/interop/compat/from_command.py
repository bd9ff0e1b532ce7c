"""The sweep that a command line of nccl-tests, OSU or ds_bench stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpcbench.config.axes import MAX_WORLD_SIZE, NCCL_TESTS_SPLIT
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError, UsageError
from hpcbench.interop.compat.command_line import CommandLaunch, Program, split_command
from hpcbench.interop.compat.ds_bench import SCRIPTS, ds_bench_sweep
from hpcbench.interop.compat.options import PROGRAM_NAMES, parse, to_sweep
from hpcbench.interop.compat.osu import PREFIX, osu_sweep
from hpcbench.launch.session import RANKS_WITHOUT_GPUS
from hpcbench.records import dataclass
from hpcbench.texts import first_line, masked, valid
from hpcbench.units import format_bytes, plural

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
