"""The options of DeepSpeed's ds_bench, and the sweep that measures the same."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from hpcbench.config.axes import BACKENDS, DTYPE_ALIASES, TORCH
from hpcbench.errors import UsageError
from hpcbench.operations.collectives import DTYPE_BYTES

SCRIPTS: Mapping[str, str] = MappingProxyType({
    "ds_bench": "", "run_all.py": "", "all_reduce.py": "all_reduce",
    "all_gather.py": "all_gather", "all_to_all.py": "all_to_all", "broadcast.py": "broadcast",
    "reduce_scatter.py": "reduce_scatter", "pt2pt.py": "pt2pt"})
"""Program -> the operation that it measures; empty: by its options."""
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
    blocks = [*_blocks(program, given, wanted, ranks)]
    trials = given.trials
    measure = {"mode": "pipelined", "batch": trials, "warmup": -(-given.warmups // trials)}
    return {"name": program.removesuffix(".py"), "measure": measure, "benchmarks": blocks}, (
        *(f"--{name.replace('_', '-')}: no effect: {why}" for name, why in _LOST.items()
          if getattr(given, name) not in (None, False)),
        *_remarks(given, wanted, ranks))


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


def _blocks(
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


def _remarks(given: Namespace, wanted: Sequence[str], ranks: int) -> Iterator[str]:
    if given.scan and "all_gather" in wanted:
        yield f"size of all_gather: of all {ranks} ranks together, {ranks} x that of ds_bench"
    if not given.scan:
        factor = "" if given.mem_factor is None else f" {given.mem_factor:g}"
        yield (f"--mem-factor{factor}: without --scan ds_bench sends one message that fills this "
               "share of a GPU's memory; here it has 1 GiB: set size")
    elif given.mem_factor is not None:
        yield f"--mem-factor {given.mem_factor:g}: no effect: --scan does not read it"
