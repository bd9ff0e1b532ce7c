"""Correct tables of other programs, written from the grammar of their formats, to any numbers.

Written apart from the readers in `hpcbench.interop.formats`: what these get wrong must not be
right here.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, field

from hypothesis import strategies as st

ELEMENTS = {"float": 4, "half": 2, "int8": 1, "double": 8, "bfloat16": 2}
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n, "alltoall": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n, "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0, "reduce": lambda n: 1.0, "sendrecv": lambda n: 1.0}
OF_ALL_RANKS = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")


def fit(value: float, width: int) -> str:
    """Return a number as nccl-tests fits it: 2 decimals, else 1, else 0, else an exponent."""
    for digits in (2, 1, 0):
        text = f"{value:.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


@dataclass(frozen=True)
class Sweep:
    """What was measured: ``times`` has a pair (out of place, in place) a row, in us."""

    program: str
    ranks: int
    dtype: str
    counts: tuple[int, ...]
    times: tuple[tuple[float, float], ...]
    checked: bool = True
    each: bool = False
    in_place_only: bool = False
    cpu_time: bool = False
    stamps: bool = False
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        parts = self.ranks if self.program in OF_ALL_RANKS else 1
        return tuple(count * ELEMENTS[self.dtype] * parts for count in self.counts)

    def rates(self, size: int, time_us: float) -> tuple[float, float]:
        algbw = size / time_us / 1e3
        return algbw, algbw * FACTORS[self.program](self.ranks)

    @property
    def average(self) -> float:
        pairs = zip(self.sizes, self.times, strict=True)
        found = [self.rates(size, time)[1] for size, pair in pairs
                 for time in (pair[1:] if self.in_place_only else pair)]
        return sum(found) / len(found)


times = st.floats(0.5, 5e6)


@st.composite
def sweeps(draw: st.DrawFn, *, plain: bool = False) -> Sweep:
    program = draw(st.sampled_from(sorted(FACTORS)))
    length = draw(st.integers(1, 12))
    dtype = draw(st.sampled_from(sorted(ELEMENTS)))
    first = draw(st.integers(1, 1000)) * 16 // ELEMENTS[dtype]
    factor = draw(st.sampled_from((2, 4)))
    flags = {name: False if plain else draw(st.booleans())
             for name in ("each", "in_place_only", "cpu_time", "stamps")}
    return Sweep(
        program, draw(st.integers(1, 4096) if not plain else st.integers(2, 64)), dtype,
        tuple(first * factor ** at for at in range(length)),
        tuple((draw(times), draw(times)) for _ in range(length)), draw(st.booleans()), **flags)


def nccl_text(sweep: Sweep) -> str:
    lines = ["# nccl-tests version 2.19.6 nccl-headers=23004 nccl-library=23004",
             f"# Collective test starting: {sweep.program}_perf",
             "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20 "
             "agg iters: 1 validation: 1 graph: 0 unalign: 0", "#", "# Using devices"]
    lines += [f"#  Rank {rank:2d} Group {0:2d} Pid {7:6d} on {'node1':>10} device {rank % 8:2d} "
              f"[0000:{rank % 8:02x}:00] NVIDIA H100" for rank in range(sweep.ranks)]
    time = "cputime" if sweep.cpu_time else "time"
    each = "  i_min i_max i_p99 i_cv%" if sweep.each else ""
    names = f"   {time}   algbw   busbw  #wrong{each}"
    lines += ["#", "#   out-of-place   in-place", f"#       size         count      type   redop"
              f"    root {names}{'' if sweep.in_place_only else names}",
              "#        (B)    (elements)      (us)  (GB/s)  (GB/s)"]
    for size, count, pair in zip(sweep.sizes, sweep.counts, sweep.times, strict=True):
        row = f"{size:12d}  {count:12d}  {sweep.dtype:>8}  {'sum':>6}  {-1:6d}"
        halves = [nccl_half(sweep, size, one) for one in pair]
        row += (" " * 32 if sweep.in_place_only else halves[0]) + halves[1]
        lines.append(row + ("  2026-07-01 12:00:00" if sweep.stamps else ""))
    lines += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {sweep.average:g} ", "#",
              f"# Collective test concluded: {sweep.program}_perf"]
    return "\n".join(lines) + "\n"


def nccl_half(sweep: Sweep, size: int, time_us: float) -> str:
    algbw, busbw = sweep.rates(size, time_us)
    shown = time_us * 0.9 if sweep.cpu_time else time_us
    text = (f"  {fit(shown, 7):>7}  {fit(algbw, 6):>6}  {fit(busbw, 6):>6}"
            f"  {'0' if sweep.checked else 'N/A':>6}")
    if sweep.each:
        text += "".join(f"  {fit(one, 7):>7}" for one in (
            time_us * 0.8, time_us * 1.5, time_us * 1.4, 3.2))
    return text


def nccl_json(sweep: Sweep) -> str:
    """Return what `util.cu` writes: one line, doubles as %lf, flags as texts, an empty error."""
    def half(size: int, time_us: float) -> dict[str, object]:
        algbw, busbw = sweep.rates(size, time_us)
        return {"time": time_us, "alg_bw": algbw, "bus_bw": busbw,
                "nwrong": 0.0 if sweep.checked else None}

    rows = [{"size": size, "count": count, "type": sweep.dtype, "redop": "sum", "root": "    -1",
             "out_of_place": None if sweep.in_place_only else half(size, pair[0]),
             "in_place": half(size, pair[1]), "actual_iterations": 20, "experiment_name": None}
            for size, count, pair in zip(sweep.sizes, sweep.counts, sweep.times, strict=True)]
    devices = [{"rank": rank, "group": 0, "pid": 7, "hostname": "node1", "device": rank,
                "device_hex": "0x1", "device_info": "NVIDIA H100"} for rank in range(sweep.ranks)]
    text = json.dumps({
        "version": 3, "start_time": "x",
        "args": [f"/opt/{sweep.program}_perf", "-b", "8", "--token=hunter2-in-args"],
        "env": ["API_KEY=hunter2-in-env"], "nccl_version": 23004,
        "config": {"nthreads": 1, "ngpus": 1, "step_factor": 2, "iterations": 20,
                   "blocking_collectives": "false", "devices": devices}, "results": rows,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": sweep.average, "okay": "unchecked"},
        "errors": [""], "end_time": "y"}, separators=(",", ":"))
    return re.sub(r"(?<=:)\d+\.\d+(?:e[-+]\d+)?", lambda number: f"{float(number[0]):f}", text)


def osu_text(sweep: Sweep, *, full: bool, checked: bool) -> str:
    columns = "Avg Latency(us)" + ("   Min Latency(us)   Max Latency(us)  Iterations" if full
                                   else "")
    lines = ["", "# OSU MPI Allreduce Latency Test v7.3", "# Datatype: MPI_CHAR.",
             f"# Size       {columns}{'     Validation' if checked else ''}"]
    for size, (one, other) in zip(sweep.sizes, sweep.times, strict=True):
        low, high = sorted((one, other))
        row = f"{size:<10d} {(low + high) / 2:18.2f}"
        row += f" {low:18.2f} {high:18.2f} {1000:12d}" if full else ""
        lines.append(row + ("            Pass" if checked else ""))
    return "\n".join(lines) + "\n"


def osu_rates(sweep: Sweep) -> str:
    lines = ["# OSU MPI Multiple Bandwidth / Message Rate Test v5.9",
             "# [ pairs: 1 ] [ window size: 64 ]",
             "# Size                  MB/s        Messages/s"]
    lines += [f"{size:<10d} {size / time:20.2f} {1e6 / time:20.2f}"
              for size, (time, _) in zip(sweep.sizes, sweep.times, strict=True)]
    return "\n".join(lines) + "\n"


INSPECTOR = {"all_reduce": "AllReduce", "all_gather": "AllGather", "broadcast": "Broadcast",
             "reduce_scatter": "ReduceScatter", "reduce": "Reduce"}


def inspector_lines(sweep: Sweep, *, once: bool) -> str:
    header = {"id": "0x7f", "comm_name": "default", "rank": 0, "n_ranks": sweep.ranks, "nnodes": 1}
    metadata = {"inspector_output_format_version": "v4.3" if once else "v4.0", "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": 1,
                "hostname": "node1", "pid": 7}
    program = sweep.program if sweep.program in INSPECTOR else "all_reduce"
    lines = [{"header": header, "metadata": metadata, "dump_stats": {"written": 1}}] if once else []
    for number, (size, (time, _)) in enumerate(zip(sweep.sizes, sweep.times, strict=True)):
        exec_us = int(time) + 1
        traffic = size * (sweep.ranks if program in OF_ALL_RANKS else 1)
        algbw = traffic / exec_us / 1e3
        perf = {"coll": INSPECTOR[program], "coll_sn": number, "coll_msg_size_bytes": size,
                "coll_exec_time_us": exec_us, "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": round(algbw, 6),
                "coll_busbw_gbs": round(algbw * FACTORS[program](sweep.ranks), 6)}
        lines.append({"coll_perf": perf} if once else {
            "header": header, "metadata": metadata, "coll_perf": perf})
    return "".join(json.dumps(line) + "\n" for line in lines)


def param_text(sweep: Sweep) -> str:
    name = {"alltoall": "all_to_all"}.get(sweep.program, sweep.program)
    dtype = {4: "float32", 2: "float16", 1: "int8", 8: "float64"}[ELEMENTS[sweep.dtype]]
    lines = ["", "\tCOMMS-RES" + "".join(f"{one:>20}" for one in (
        "size (B)", "nElementsPerRank", "Latency(us):p50", "p75", "p95", "Min", "Max",
        "AlgBW(GB/s)", "BusBW(GB/s)", "TotalLatency(us):p50"))]
    for size, count, (time, _) in zip(sweep.sizes, sweep.counts, sweep.times, strict=True):
        algbw, busbw = sweep.rates(size, time)
        lines.append(f"\tCOMMS-RES-{name}-{dtype}{size:>18}{count:>18}" + "".join(
            f"{one:>18}" for one in (
                *(f"{time * share:.1f}" for share in (1, 1.1, 1.2, 0.9, 1.3)),
                f"{algbw:.3f}", f"{busbw:.3f}")))
    return "\n".join(lines) + "\n"


def nvbandwidth_json(rows: list[list[float]]) -> str:
    matrix = [["N/A" if at == to else f"{value:.2f}" for to, value in enumerate(row)]
              for at, row in enumerate(rows)]
    values = [value for at, row in enumerate(rows) for to, value in enumerate(row) if at != to]
    return json.dumps({"nvbandwidth": {
        "CUDA Runtime Version": 12080, "Driver Version": "570", "git_version": "v0.8",
        "GPU Device list": ["0: NVIDIA H100"], "testcases": [
            {"name": "device_to_device_memcpy_read_ce", "status": "Passed",
             "bandwidth_description": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
             "bandwidth_matrix": matrix, "sum": sum(values), "min": min(values),
             "max": max(values), "average": sum(values) / len(values)},
            {"name": "multinode", "status": "Waived"}]}}, indent=2)


def ddlb_csv(shapes: list[tuple[int, int, int]], runs: list[float]) -> str:
    stream = io.StringIO()
    names = ("implementation", "mean_time (ms)", "std_time", "min_time", "max_time", "m", "n", "k",
             "dtype", "Throughput (TFLOPS)", "Throughput std (TFLOPS)", "world_size", "hostname",
             "option", "valid")
    writer = csv.writer(stream)
    writer.writerow(names)
    for m, n, k in shapes:
        rates = [2 * m * n * k / 1e9 / one for one in runs]
        writer.writerow(["pytorch (order=AG_before)", sum(runs) / len(runs), 0.1, min(runs),
                         max(runs), m, n, k, "float16", sum(rates) / len(rates), 0.2, 8,
                         "secret-host", "order=AG_before,x=1", True])
    return stream.getvalue()


def superbench_lines(sweep: Sweep) -> str:
    name = {"all_reduce": "allreduce", "all_gather": "allgather"}.get(sweep.program, sweep.program)
    node: dict[str, object] = {"node": "node1", "nccl-bw/return_code": 0, "monitor/gpu_temp:0": 41}
    for size, (time, _) in zip(sweep.sizes, sweep.times, strict=True):
        algbw, busbw = sweep.rates(size, time)
        node |= {f"nccl-bw/{name}_{size}_{what}:0": float(f"{value:.2f}") for what, value in (
            ("time", time), ("algbw", algbw), ("busbw", busbw))}
    return json.dumps(node) + "\n"
