"""Tables by which NCCL, RCCL and NCCLX choose an algorithm and a protocol: ``advise ... tuner``.

In all three the first line that matches wins, a line has less than 256 characters, also a comment,
and there are no blanks around commas. A call that matches no line gets NCCL's own choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hpcbench import __version__
from hpcbench.answers.answer import Run
from hpcbench.answers.compare import SMALLEST
from hpcbench.answers.tasks import Paired
from hpcbench.errors import UsageError, command_line, job_command_line, shell_line
from hpcbench.interop.answers.tuner import TunedRange, TunerTable, tuner_table
from hpcbench.interop.formats.export.cases import Exported, LeftOut, joined, left_out_lines
from hpcbench.records import dataclass
from hpcbench.report.answer_lines import opened
from hpcbench.units import plural, size_text, three_digits

LONGEST = 255
"""Characters of a line with its end: the rest of a longer one would be read as another line."""
ANY = "-1"
"""Any number, or NCCL's own number of channels."""
_NOT_IN_COMMENTS = re.compile("[^ -~]+")
_ONE_CHANNEL = ("before you build NCCL's ext-tuner/example, set *nChannels = 0 in its plugin.c: "
                "as it is (2.28 to 2.30), every call that takes no number of channels from a line "
                "runs on one channel")


@dataclass(frozen=True, slots=True)
class TunerDialect:
    """How a library takes a table: a ``line``, or why there is none; ``file`` and ``others`` are
    the variables that name the table and what else it needs."""

    line: Callable[[TunedRange], tuple[str, str]]
    file: str
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _by_bytes(one: TunedRange) -> tuple[str, str]:
    """Return ``allreduce,LOW,HIGH,tree,ll,-1,NODES,RANKS,-1,-1``: bytes inclusive."""
    return ",".join([
        one.calls.collective, str(one.sizes[0]), str(one.sizes[-1]), one.choice.algorithm,
        one.choice.protocol, ANY, str(one.calls.nodes), str(one.calls.ranks), ANY, ANY]), ""


def _by_bytes_a_rank(row: TunedRange) -> tuple[str, str]:
    """Return ``allreduce,[LOW,HIGH],tree,ll,-1,NODES,LOCAL_RANKS``: bytes over ranks, rounded."""
    nodes, ranks = row.calls.nodes, row.calls.ranks
    if ranks % nodes:
        return "", "nodes with different numbers of ranks"
    low, high = row.sizes[0] // ranks, row.sizes[-1] // ranks
    if any(low <= size // ranks <= high for size in row.others):
        return "", "sizes that differ by less than a byte a rank"
    return ",".join([row.calls.collective, f"[{low},{high}]", row.choice.algorithm,
                     row.choice.protocol, ANY, str(nodes), str(ranks // nodes)]), ""


DIALECTS: Mapping[str, TunerDialect] = MappingProxyType({
    "nccl": TunerDialect(_by_bytes, "NCCL_TUNER_CONFIG_FILE",
                    ("NCCL_TUNER_PLUGIN=/PATH/libnccl-tuner-example.so",), (_ONE_CHANNEL,)),
    "rccl": TunerDialect(_by_bytes, "NCCL_TUNER_CONFIG_FILE"),
    "ncclx": TunerDialect(_by_bytes_a_rank, "NCCLX_TUNER_CONFIG_FILE")})


def dialect_of(name: str) -> TunerDialect:
    """Return the dialect of a library. Raises UsageError for one that has no table."""
    if name not in DIALECTS:
        raise UsageError(f"--to {name}: allowed are {', '.join(DIALECTS)}")
    return DIALECTS[name]


def tuner_file(
    paths: Sequence[Path], to: str, target: Path | None,
) -> tuple[Exported, Sequence[str]]:
    """Return a table for a library, and lines on what it lacks and how to prove it.

    ``target`` is where it will be. Raises UsageError where nothing can be compared, or the runs
    are of another library; FileError or TraceError for files that are no results."""
    dialect = dialect_of(to)
    with opened(paths) as runs:
        table = tuner_table(runs)
        if table.is_rccl != (to == "rccl"):
            raise UsageError(f"--to {to}: these cases ran on {'RCCL' if table.is_rccl else 'NCCL'}")
        exported = _written(table, dialect, runs)
        ranks = max(run.results.run.world_size for run in runs)
    shown = [*exported.notes, *left_out_lines(exported.left_out)]
    if not any(line and line[0] != "#" for line in exported.content.decode().splitlines()):
        return exported, [*shown, "no line: leave the tuner out"]
    return exported, [*shown, *dialect.notes, *_proof(dialect, ranks, target)]


def _written(table: TunerTable, dialect: TunerDialect, runs: Sequence[Run]) -> Exported:
    lines, left_out = [], [LeftOut(reason, name) for reason, name in table.left_out]
    for row in table.ranges:
        line, why = dialect.line(row)
        if why:
            left_out.append(LeftOut(why, _title(row)))
        else:
            lines += [f"# {_title(row)}: {gain_text(row.gain)}", line]
    content = [*_head(table, runs, any_line=bool(lines)), *lines]
    return Exported(joined(map(_fitting, content)), tuple(left_out),
                    table.notes)


def _head(table: TunerTable, runs: Sequence[Run], *, any_line: bool) -> Iterator[str]:
    versions = dict.fromkeys(run.results.run.versions.get("nccl", "?") for run in runs)
    names = " ".join(run.results.run.run_id for run in runs)
    yield (f"# hpcbench {__version__}, {'RCCL' if table.is_rccl else 'NCCL'} "
           f"{' '.join(versions)}, run {names}")
    yield (f"# {'lines' if any_line else 'no line'}: over {100 * SMALLEST:.0f} % faster than its "
           f"own choice, of {plural(table.n_compared, 'comparison')}")


def _fitting(line: str) -> str:
    """Return a line that no reader cuts in two: names of runs are texts from outside."""
    return _NOT_IN_COMMENTS.sub("?", line)[:LONGEST - 1]


def _title(one: TunedRange) -> str:
    sizes = " to ".join(dict.fromkeys(map(size_text, (one.sizes[0], one.sizes[-1]))))
    return (f"{one.calls.collective} {sizes}, {plural(one.calls.ranks, 'rank')}, "
            f"{one.choice.algorithm}/{one.choice.protocol}")


def gain_text(gain: Paired) -> str:
    """Return ``12 % faster (95 % CI 10 to 14 %, 9 passes)``: the time that is saved, over the rest.
    """
    shown = gain.interval.map(lambda ratio: 100 * (ratio - 1))
    low, high = map(three_digits, shown.ends)
    return (f"{three_digits(shown.value)} % faster (95 % CI {low} to {high} %, "
            f"{gain.n} {gain.unit})")


def _proof(dialect: TunerDialect, ranks: int, target: Path | None) -> Iterator[str]:
    """Yield the commands that measure the same sweep without and with the table."""
    run = ("run", "SWEEP", "--launches", "5", "--exclude", "*NCCL_ALGO=*", "--exclude",
           "*NCCL_PROTO=*", "-o")
    file = f"{dialect.file}={'FILE' if target is None else target.absolute()}"
    yield "to prove it (on several nodes, have the launcher pass the variables on):"
    yield f"  {job_command_line(ranks, *run, 'untuned')}"
    yield f"  export {shell_line(*dialect.others, file)}"
    yield f"  {job_command_line(ranks, *run, 'tuned')}"
    yield f"  {command_line('compare', 'untuned/latest', 'tuned/latest')}"
