"""How fast are files of other programs read, and in how much memory?

    python benchmarks/import_speed.py [--mb 60] [--repeat 3] [--against CHECKOUT]

A file of each reader is written to a temporary folder: logs of jobs of 16 ranks, with what NCCL
says of its channels before each table of 24 rows, operations of NCCL Inspector, a flight record, a
Kineto trace and an execution trace of torch. Each is read in a process of its own, as `hpcbench
lint` or `hpcbench import` read it. Printed are MB/s of the processor's time, the best of
``--repeat``, and the process's peak. ``--against``: a checkout of another version reads the same
files in turn. Goals: 50 MB/s of a log in 70 MiB; with ``--against``, 5 times its rate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launching import ROOT, fail

GOAL_MB_S, GOAL_MIB, GOAL_RATIO = 50.0, 70.0, 5.0
LOG = "tables"


def main() -> None:
    """Write and read a file of each kind; tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=60.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", nargs="+", choices=FILES, default=[*FILES])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(read_once(given.only[0], Path(given.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(int(not all([compare(name, given, Path(folder)) for name in given.only])))


def nccl_log() -> Iterator[str]:
    """Yield the logs of jobs one after the other: lines of NCCL, then a table of 24 sizes."""
    ways = ("via P2P/CUMEM/read", "[send] via NET/IB/3/GDRDMA", "[receive] via NET/IB/3/GDRDMA",
            "via SHM/direct/direct")
    while True:
        for channel in range(32):
            for number in range(16 * len(ways)):
                rank, way = number % 16, ways[number // 16]
                yield (f"node{rank // 8}:{41000 + rank}:{41100 + rank} [{rank % 8}] NCCL INFO "
                       f"Channel {channel:02d}/0 : {rank}[{rank % 8}] -> {(rank + 1) % 16}"
                       f"[{(rank + 1) % 8}] {way}\n")
            yield f"node0:41000:41100 [0] NCCL INFO Channel {channel:02d}/32 :    0   1   2   3\n"
        yield from ("# Collective test starting: all_reduce_perf\n",
                    "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup "
                    "iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n", "#\n",
                    "# Using devices\n")
        yield from (f"#  Rank {rank:2d} Group  0 Pid {41000 + rank} on node{rank // 8} device "
                    f"{rank % 8} [0x07] NVIDIA H100 80GB HBM3\n" for rank in range(16))
        names = "   time   algbw   busbw #wrong"
        yield f"#       size         count      type   redop    root  {names}  {names}\n"
        for size in (8 * 2**power for power in range(24)):
            time_us = 20 + size / 2e5
            half = (f"  {time_us:7.2f}  {size / time_us / 1e3:6.2f}  "
                    f"{size / time_us / 1e3 * 1.875:6.2f}       0")
            yield f"{size:12d}  {size // 4:12d}     float     sum      -1{half}{half}\n"
        yield from ("# Out of bounds values : 0 OK\n", "# Avg bus bandwidth    : 98.3 \n", "#\n")


def inspector() -> Iterator[str]:
    """Yield operations as NCCL Inspector v4.0 dumps them, a line each."""
    header = {"id": "0x7f", "rank": 0, "n_ranks": 16, "nnodes": 2}
    metadata = {"inspector_output_format_version": "v4.0", "git_rev": "", "hostname": "node0",
                "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": 1, "pid": 7}
    number = 0
    while True:
        number += 1
        yield json.dumps({"header": header, "metadata": metadata, "coll_perf": {
            "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 2**20,
            "coll_exec_time_us": 100, "coll_algobw_gbs": 10.48576,
            "coll_busbw_gbs": 19.6608}}) + "\n"


def flight() -> Iterator[str]:
    """Yield a flight record of torch in parts; the last one is left to `written`."""
    yield ('{"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": '
           '"[0, 1]"}}, "entries": [')
    number = 0
    while True:
        number += 1
        yield json.dumps({
            "record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"],
            "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
            "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + number * 10**6,
            "input_sizes": [[4096, 64]], "input_dtypes": ["BFloat16"], "output_sizes": [[4096, 64]],
            "output_dtypes": ["BFloat16"], "state": "completed", "retired": True,
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "timeout_ms": 600000, "is_p2p": False})


def kineto() -> Iterator[str]:
    """Yield a trace of torch's profiler in parts: for each call its operator and its kernel."""
    yield ('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2'
           ', "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "nccl", '
           '"pg_size": 2, "ranks": [0, 1]}]}, "traceEvents": [')
    number = 0
    while True:
        number += 1
        args: dict[str, Any] = {
            "External id": number, "Collective name": "allreduce", "In msg nelems": 2**20,
            "Out msg nelems": 2**20, "Group size": 2, "dtype": "BFloat16",
            "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]", "In split size": "[]", "Out split size": "[]"}
        yield json.dumps({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 9,
                          "tid": 9, "ts": number * 500, "dur": 5.0, "args": args})
        yield json.dumps({"ph": "X", "cat": "kernel", "pid": 0, "tid": 20, "ts": number * 500 + 10,
                          "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)",
                          "dur": 120.0, "args": {**args, "stream": 20, "correlation": number}})


def execution() -> Iterator[str]:
    """Yield an execution trace of torch in parts."""
    group = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
                         "ranks": [0, 1], "group_size": 2, "group_count": 1}])
    nothing = {"values": [], "shapes": [], "types": []}
    yield ('{"schema": "1.1.0-chakra.0.0.4", "pid": 5000, "time": "2026-01-30 10:00:00", '
           '"start_ts": 1, "nodes": [')
    yield json.dumps({"id": 2, "name": "## process_group:init ##", "ctrl_deps": 1, "attrs": [],
                      "inputs": {"values": [group], "shapes": [[]], "types": ["String"]},
                      "outputs": nothing})
    number = 9
    while True:
        number += 1
        attributes = {"rf_id": 0, "scope": 0, "tid": 0, "collective_name": "allreduce",
                      "dtype": "Float", "in_msg_nelems": 53120, "out_msg_nelems": 53120,
                      "pg_name": "0", "group_size": 2}
        tensor = [[20, 30, 0, 53120, 4, "cuda:0"]]
        yield json.dumps({
            "id": number, "name": "record_param_comms", "ctrl_deps": 1, "inputs": {
                "values": [tensor, number, ["0", "default_pg"], 0, "allreduce", [], [], 0, 1, 2],
                "shapes": [[[53120]], *[[]] * 9], "types": [
                    "GenericList[Tensor(float)]", "Int", "Tuple[String,String]", "Int", "String",
                    "GenericList[]", "GenericList[]", "Int", "Int", "Int"]},
            "outputs": nothing, "attrs": [
                {"name": name, "type": "string" if isinstance(value, str) else "uint64",
                 "value": value} for name, value in attributes.items()]})


FILES: dict[str, tuple[Callable[[], Iterator[str]], str]] = {
    LOG: (nccl_log, "job.log"), "inspector": (inspector, "inspector.jsonl"),
    "flight": (flight, "rank0.json"), "kineto": (kineto, "rank0.pt.trace.json"),
    "execution": (execution, "rank0_et.json")}
"""Reader -> the parts of a file without end, and its name."""


def written(name: str, size_bytes: int, folder: Path) -> Path:
    """Write a file of about this size, and the end that belongs to its beginning."""
    parts, file_name = FILES[name]
    path = folder / name / file_name
    path.parent.mkdir()
    is_list = path.suffix == ".json"
    with path.open("w", encoding="utf-8") as stream:
        for number, part in enumerate(parts()):
            stream.write(part if number < 2 or not is_list else f",\n{part}")
            if number and stream.tell() >= size_bytes:
                break
        stream.write("]}\n" if is_list else "")
    return path


def read_once(name: str, path: Path) -> dict[str, float]:
    """Read a file; return the processor's seconds, the peak in MiB, and how much was in it."""
    from hpcbench.interop.formats.reading.detect import tables_of
    from hpcbench.interop.traffic.imported import import_traffic

    began_s = time.process_time()
    if name in (LOG, "inspector"):
        count = sum(len(table.rows) for table in tables_of(path))
    else:
        output = path.with_name(f"{os.getpid()}.traffic.json")
        import_traffic([path], output)
        count = sum(one["count"] for one in json.loads(output.read_text())["signatures"])
        output.unlink()
    return {"cpu_s": time.process_time() - began_s, "count": count,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def in_process(name: str, path: Path, checkout: Path) -> dict[str, float]:
    """Read a file with the package of a checkout, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--only", name, "--one", str(path)], capture_output=True,
        text=True, check=False, env={**os.environ, "PYTHONPATH": str(checkout)})
    if done.returncode:
        fail(f"{name}: {done.stderr}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def compare(name: str, given: argparse.Namespace, folder: Path) -> bool:
    """Read a file of this kind several times and print the rates; return whether goals are met."""
    path = written(name, int(given.mb * 1e6), folder)
    size_mb = path.stat().st_size / 1e6
    checkouts = [ROOT, *([given.against] if given.against else [])]
    found: dict[Path, list[dict[str, float]]] = {checkout: [] for checkout in checkouts}
    for _ in range(given.repeat):
        for checkout in checkouts:
            found[checkout].append(in_process(name, path, checkout))
    best = [min(found[checkout], key=lambda one: one["cpu_s"]) for checkout in checkouts]
    text = (f"{name}: {size_mb:.0f} MB, {best[0]['count']} calls or rows: "
            f"{size_mb / best[0]['cpu_s']:.0f} MB/s in {best[0]['peak_mib']:.0f} MiB")
    is_met = name != LOG or (size_mb / best[0]["cpu_s"] >= GOAL_MB_S
                             and best[0]["peak_mib"] <= GOAL_MIB)
    if given.against:
        ratio = best[1]["cpu_s"] / best[0]["cpu_s"]
        text += (f"; {size_mb / best[1]['cpu_s']:.0f} MB/s in {best[1]['peak_mib']:.0f} MiB of "
                 f"{best[1]['count']} there: {ratio:.1f} times its rate")
        is_met &= name != LOG or ratio >= GOAL_RATIO
    print(f"{text}{'' if name != LOG else '; goal ' + ('met' if is_met else 'missed')}", flush=True)
    return is_met


if __name__ == "__main__":
    main()
