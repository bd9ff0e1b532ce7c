"""Tables in the forms in which logs have them, generated: prefix x version x torn lines x order.

A row is read with its own values, or it is left out: never read wrongly. In a log in which nothing
is torn all rows are read, whatever stands before them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from foreign_tables import fit
from hpcbench.errors import FileError
from hpcbench.interop.formats.implied_ranks import most_likely
from hpcbench.interop.formats.lint import contradicting, lint
from hpcbench.interop.formats.reading.detect import tables_of
from hpcbench.interop.formats.reading.source import Unread
from hpcbench.interop.formats.tables import CommRow, CommTable, Printed, PrintedForm, printed

FORMS_A_SEED = 50
Values = tuple[float, ...]
Prefix = Callable[[int, str], str]


def stamp(at: int) -> str:
    return f"2026-01-30T{10 + at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}"


PREFIXES: dict[str, Prefix] = {
    "none": lambda at, line: line,
    "mpirun 4": lambda at, line: f"[1,0]<stdout>:{line}",
    "tag": lambda at, line: f"[1,0]<stdout>: {line}",
    "tag-detailed": lambda at, line: f"[1,0][gpu-a:25617]<stdout>: {line}",
    "tag-fullname": lambda at, line: f"[prterun-gpu-a-48213@1,0]<stdout>: {line}",
    "timestamp": lambda at, line: f"[Fri Jan 30 {stamp(at)[11:]} 2026]<stdout>: {line}",
    "srun -l": lambda at, line: f"0: {line}",
    "srun -l of 128": lambda at, line: f"  0: {line}",
    "pdsh": lambda at, line: f"gpu-a: {line}",
    "torchrun": lambda at, line: f"[default0]:{line}",
    "kubectl --timestamps": lambda at, line: f"{stamp(at)}.{at * 7919 % 10**9:09d}Z {line}",
    "kubectl --prefix": lambda at, line: f"[pod/launcher-x7k2p/nccl] {line}",
    "CRI": lambda at, line: f"{stamp(at)}.{at * 7919 % 10**9:09d}+01:00 stdout F {line}",
    "compose": lambda at, line: f"launcher-0  | {line}",
    "json-file": lambda at, line: json.dumps(
        {"log": line + "\n", "stream": "stdout", "time": f"{stamp(at)}Z"}),
    "journal": lambda at, line: f"Jan 30 {stamp(at)[11:]} gpu-a nccl[4711]: {line}",
    "ts": lambda at, line: f"{1769768520 + at}.123456 {line}",
    "logging": lambda at, line: f"[{stamp(at).replace('T', ' ')},{at % 1000:03d}][INFO] - {line}",
    "colours": lambda at, line: f"\x1b[32m{line}\x1b[0m",
    "quotes": lambda at, line: f'        "{line}",',
    "xml": lambda at, line: f'<stdout rank="0">{line}&#010;</stdout>',
    "indent": lambda at, line: f"    {line}",
}
TYPES = {"float": 4, "half": 2, "bfloat16": 2, "double": 8}
OPERATORS = ("sum", "prod", "max", "min")


@dataclass(frozen=True)
class Form:
    """The lines of a table, and what each row says: (size, then numbers in their order)."""

    program: str
    lines: list[str]
    rows: set[Values]


def half_of(size: int, time: float, factor: float) -> tuple[float, float, float]:
    rate = size / time / 1e3
    return time, rate, rate * factor


def nccl(draw: random.Random, form: str) -> Form:
    """Return a table of a version of nccl-tests: its columns, blanks, widths and units."""
    ranks, dtype = draw.choice((2, 8, 16)), draw.choice((*TYPES,))
    op, in_place_only = draw.choice(OPERATORS), form == "in place" and draw.random() < .7
    program, factor = draw.choice((("all_reduce", 2 * (ranks - 1) / ranks), ("reduce", 1.0)))
    each = "  i_min  i_max  i_p99  i_cv%" if form == "-I" else ""
    wrong = {"2.0": "res", "2.12": "error", "blank": "error"}.get(form, "#wrong")
    half_names = f"  {'cputime' if form == '-C' else 'time'}   algbw   busbw  {wrong}{each}"
    first = {"2.0": "bytes             N    type      op", "2.12": "size count type redop",
             "blank": "size         count    type   redop"}.get(
                 form, "size         count      type   redop    root")
    starts = {"2.0": [], "rccl": [
        f"# nThreads: 1 nGpus: {ranks} nRanks: 1 minBytes: 8 maxBytes: 64 step: 2(factor) "
        "warmupIters: 5 iters: 20 validation: 1"]}.get(
        form, [*([f"# Collective test starting: {program}_perf"] if form != "2.12" else []),
               f"# nThread 1 nGpus {ranks} minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 "
               "iters: 20 agg iters: 1 validation: 1 graph: 0"])
    pid = "" if form == "2.0" else "Pid  41000 "
    lines = [*starts, "#", "# Using devices"]
    lines += [f"#  Rank {one:2d} {pid}on      gpu-a device {one % 8:2d} [0x07] NVIDIA H100"
              for one in range(ranks)]
    lines += ["#", f"#       {first}{half_names}{half_names}"
              + ("            timestamp" if form == "-S" else "")]
    rows = set[Values]()
    count, unit = draw.randrange(1, 2000) * 16, 1e3 if form == "2.0" else 1.0
    for _ in range(draw.randrange(1, 7)):
        size = count * TYPES[dtype]
        halves = [half_of(size, draw.uniform(9, 90) * (1 + size / 1e6), factor) for _ in (0, 1)]
        row = f"{size:12d}  {count:12d}  {dtype:>8}"
        row += "" if form == "blank" else f"  {op:>6}"
        row += "        " if form == "blank" else ""
        row += "" if form in ("2.0", "2.12", "blank") else f"  {-1:6d}"
        values: list[float] = [size]
        for number, (time, rate, bus) in enumerate(halves):
            if in_place_only and not number:
                row += " " * 32
                continue
            shown = f"{time / unit:.3f}" if form == "2.0" else fit(time, 7)
            rates = [f"{one:.2f}" if form == "2.0" else fit(one, 6) for one in (rate, bus)]
            row += f"  {shown:>7}  {rates[0]:>6}  {rates[1]:>6}"
            row += f"  {'0e+00' if wrong != '#wrong' else '0':>6}"
            row += "".join(f"  {fit(time * one, 7):>7}" for one in (
                (.9, 1.4, 1.3, .2) if each else ()))
            values += [float(shown) * unit, *map(float, rates)]
        lines.append(row + ("  2026-07-01 12:00:00" if form == "-S" else ""))
        rows.add(tuple(values))
        count *= 4
    mark = "" if form == "2.0" else "#"
    lines += [f"{mark} Out of bounds values : 0 OK", f"{mark} Avg bus bandwidth    : 12.5 ", mark]
    return Form("nccl-tests", lines, rows)


def osu(draw: random.Random, form: str) -> Form:
    """Return a table of OSU: a library, a kind of memory, columns and their widths."""
    title = draw.choice(("MPI", "MPI-CUDA", "NCCL-CUDA", "MPI-ROCM"))
    what = draw.choice(("Allreduce", "All-to-All Personalized Exchange", "Gatherv",
                        "Reduce_scatter_block", "Broadcast Persistent"))
    full, checked = form == "-f", form == "-c"
    lines = ["", f"# OSU {title} {what} Latency Test v{draw.choice(('5.6.3', '6.2', '7.5'))}"]
    lines += ["# Datatype: MPI_CHAR."] if draw.random() < .5 else []
    lines += [f"{'# Size':<10}{'Avg Latency(us)':>18}" + (
        f"{'Min Latency(us)':>18}{'Max Latency(us)':>18}{'Iterations':>12}" if full else "") + (
        f"{'Validation':>18}" if checked else "")]
    rows = set[Values]()
    for power in range(draw.randrange(1, 3), draw.randrange(4, 9)):
        time = draw.uniform(1, 5000)
        shown = [f"{time * share:.2f}" for share in ((1, .9, 1.2) if full else (1,))]
        lines.append(f"{8 ** power:<10d}" + "".join(f"{one:>18}" for one in shown) + (
            f"{1000:>12d}" if full else "") + (f"{'Pass':>18}" if checked else ""))
        rows.add((8 ** power, *map(float, shown)))
    return Form("OSU", lines, rows)


def param(draw: random.Random, form: str) -> Form:
    """Return a table of PARAM, with the heading of 2026 or the one before."""
    now = form == "PARAM of 2026"
    names = (*(("total-size (B)", "nElementsPerRank", "Time(us):p50") if now else
               ("size (B)", "nElementsPerRank", "Latency(us):p50")),
             "p75", "p95", "Min", "Max", "AlgBW(GB/s)", "BusBW(GB/s)",
             "TotalTime(us):p50" if now else "TotalLatency(us):p50")
    lines, rows, count = ["", "\tCOMMS-RES" + "".join(f"{one:>20}" for one in names)], set(), 4096
    for _ in range(draw.randrange(1, 6)):
        time = draw.uniform(20, 900)
        rate = count * 4 / float(f"{time:.1f}") / 1e3
        shown = [f"{time * one:.1f}" for one in (1, 1.1, 1.2, .9, 1.3)]
        rates = [f"{rate:.3f}", f"{rate * 1.75:.3f}"]
        lines.append(f"\tCOMMS-RES-all_reduce-float32{count * 4:>18}{count:>18}" + "".join(
            f"{one:>18}" for one in (*shown, *rates, *(["0.0"] if now else []))))
        rows.add((count * 4, float(shown[0]), *map(float, rates)))
        count *= 4
    return Form("PARAM", lines, rows)


VERSIONS: dict[str, Callable[[random.Random, str], Form]] = {
    **dict.fromkeys(("now", "-I", "-S", "-C", "in place", "rccl", "2.12", "blank", "2.0"), nccl),
    **dict.fromkeys(("OSU", "-f", "-c"), osu),
    **dict.fromkeys(("PARAM", "PARAM of 2026"), param)}


def torn(draw: random.Random, lines: list[str]) -> list[str]:
    """Return the lines with some damage, as of processes that write at once, or a full disk."""
    lines = list(lines)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(lines))
        cut = draw.randrange(len(lines[at]) + 1)
        start, end = lines[at][:cut], lines[at][cut:]
        other = draw.choice(lines)  # never exactly over this one: no width tells that of OSU's
        noise = "gpu-b:123:456 [1] NCCL INFO Channel 03/0 : 3[3] -> 4[4] via P2P"
        lines[at:at + 1] = draw.choice((
            [start], [end], [start, noise, end], [start + noise, end], [noise + end],
            [start, end], [start + noise + end], [],
            [start + other], [start + other[draw.choice([*{*range(1, 20)} - {cut}]):]]))
    return lines


def logged(draw: random.Random, forms: list[Form], prefixes: list[Prefix]) -> list[str]:
    """Return the lines of the tables one after the other, with NCCL's between, and prefixes."""
    lines = [line for form in forms for line in ("", f"+ run {form.program}", *form.lines)]
    for _ in range(draw.randrange(4)):
        lines.insert(draw.randrange(len(lines) + 1), draw.choice((
            "gpu-a:41000:41040 [0] NCCL INFO Channel 00/24 :    0   1   2   3",
            "gpu-a:41000:41040 [0] NCCL INFO comm 0x55 rank 0 nranks 8 - Init COMPLETE",
            "libfabric:3:core:core:fi_getinfo_():1123<warn> no provider found", "16 ranks start")))
    return lines if not prefixes else [
        _prefixed(line, at, prefixes) for at, line in enumerate(lines)]


def _prefixed(line: str, at: int, prefixes: list[Prefix]) -> str:
    for prefix in prefixes:
        line = prefix(at, line)
    return line


def read(path: Path) -> tuple[set[tuple[str, Values]], Unread, bool]:
    """Return rows as import takes them, what was left out, and whether anything is damaged."""
    found, left_out, is_damaged = set(), Unread(), False
    for table in tables_of(path, "", left_out):
        assert isinstance(table, CommTable)
        is_damaged |= bool(table.damaged)
        wrong = contradicting(table, most_likely(table))
        found |= {(table.program, tuple(values_of(table.program, row)))
                  for row in table.rows if row.line not in wrong}
    return found, left_out, is_damaged


def values_of(program: str, row: CommRow) -> Iterator[float]:
    yield row.size_bytes
    for half in row.halves:
        numbers = (half.time_us, half.low_us, half.high_us) if program == "OSU" else (
            half.time_us, half.algbw, half.busbw)
        yield from (round(one.value, 6) for one in numbers if one is not None)


def draw_log(draw: random.Random) -> tuple[list[Form], list[Prefix], str]:
    names = [draw.choice((*VERSIONS,)) for _ in range(draw.choice((1, 1, 2, 3)))]
    forms = [VERSIONS[name](draw, name) for name in names]
    kinds = [draw.choice((*PREFIXES,)) for _ in range(draw.choice((1, 1, 2)))]
    if kinds[0] in ("json-file", "xml", "quotes"):
        kinds = kinds[:1]  # these are the outermost
    return forms, [PREFIXES[kind] for kind in kinds], f"{names} {kinds}"


def rounded(form: Form) -> set[tuple[str, Values]]:
    return {(form.program, tuple(round(one, 6) for one in row))
            for row in form.rows}


def test_a_printed_number_is_open_by_half_a_unit_of_its_last_digit() -> None:
    halves = {"12.34": (12.34, 0.005), "-2.50": (-2.5, 0.005), "1.5e+3": (1500, 50)}
    for text, value_and_half in halves.items():
        assert printed(text) == pytest.approx(value_and_half, rel=1e-5)


@pytest.mark.parametrize(("factors", "ranks"), [((7 / 8, 7 / 8, 7 / 8), 8),
                                                ((7 / 8, 7 / 8, 15 / 16), 4)])
def test_more_than_two_thirds_overrule_the_ranks_that_are_stated(
    factors: tuple[float, ...], ranks: int,
) -> None:
    rows = tuple(CommRow(line, 2**20, (PrintedForm(algbw=Printed(100, 0.005), busbw=Printed(
        100 * factor, 0.005)),)) for line, factor in enumerate(factors))
    assert most_likely(CommTable("x", "file", 1, "all_gather", rows, ranks=4)).chosen == ranks


@pytest.mark.parametrize(("step_bytes", "rules"), [(128, ["order"]), (127, [])])
def test_sizes_repeat_where_their_step_is_less_than_16_bytes_a_rank(
    step_bytes: int, rules: list[str],
) -> None:
    rows = (CommRow(1, 1024, ()), CommRow(2, 1024, ()))
    table = CommTable("x", "file", 1, "all_reduce", rows, ranks=8, step_bytes=step_bytes)
    assert [one.rule for one in lint(table)] == rules


@pytest.mark.parametrize("seed", range(10))
def test_whole_tables_are_read_with_their_values(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(FORMS_A_SEED):
        forms, prefixes, name = draw_log(draw)
        path = tmp_path / f"{number}.log"
        path.write_text("\n".join(logged(draw, forms, prefixes)))
        found, left_out, is_damaged = read(path)
        expected = set().union(*map(rounded, forms))
        assert found == expected, (name, path, found ^ expected)
        assert not left_out and not is_damaged, (name, path, left_out.counts())


@pytest.mark.parametrize("seed", range(10))
def test_no_torn_row_is_read_wrongly(tmp_path: Path, seed: int) -> None:
    draw = random.Random(1000 + seed)
    for number in range(FORMS_A_SEED):
        forms, prefixes, name = draw_log(draw)
        path = tmp_path / f"{number}.log"
        path.write_text("\n".join(torn(draw, logged(draw, forms, prefixes))))
        try:
            found, _, _ = read(path)
        except FileError as error:
            assert str(error).startswith(str(path))
            continue
        expected = set().union(*map(rounded, forms))
        assert found <= expected, (name, path, found - expected)
