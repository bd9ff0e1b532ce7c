"""Records of communication in the forms that torch and NCCL have written them: the same job in each
is read with its own values, or left out and counted, never read as another."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.load import load_config
from hpcbench.errors import ConfigError, FileError
from hpcbench.interop.traffic.calls import dtype_of, item_bytes
from hpcbench.interop.traffic.imported import import_traffic
from hpcbench.kinds.replay.plan import Request, sequence_of
from hpcbench.operations.traffic import TrafficRecord, read_traffic, traffic_text
from hpcbench.profiling.flight import current_collective, joined

BYTES = {"fp32": 4, "bf16": 2, "int64": 8, "uint8": 1, "complex64": 8, "int8": 1}
IN_C10 = {"fp32": "Float", "bf16": "BFloat16", "int64": "Long", "uint8": "Byte",
          "complex64": "ComplexFloat", "int8": "Char"}
IN_CPP = {"fp32": "float", "bf16": "c10::BFloat16", "int64": "long int", "uint8": "unsigned char",
          "complex64": "c10::complex<float>", "int8": "signed char"}
US, START = 1000, 10**18


@dataclass(frozen=True)
class Call:
    """A call of ranks 0 to n - 1; ``rows``: elements that each rank sends to each."""

    collective: str
    dtype: str
    n_in: tuple[int, ...]
    n_out: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...] = ()
    root: int | None = None
    pair: tuple[int, int] | None = None
    took_us: int = 50

    def facts(self, *, with_rows: bool = True) -> tuple[Any, ...]:
        def short(counts: tuple[int, ...]) -> tuple[int, ...]:
            return counts[:1] if len({*counts}) == 1 else counts

        n_bytes = max(*self.n_in, *self.n_out) * BYTES[self.dtype]
        return (self.collective, self.dtype, n_bytes, short(self.n_in), short(self.n_out),
                self.rows if with_rows and len({n for row in self.rows for n in row}) > 1 else None,
                self.pair)


def facts_of(record: TrafficRecord) -> Counter[tuple[Any, ...]]:
    return Counter({(one.collective, one.dtype, one.bytes, one.elements_in, one.elements_out,
                     one.splits_in, one.pair): one.count for one in record.signatures})


def drawn(draw: random.Random, ranks: int, names: Sequence[str]) -> list[Call]:
    """Return the calls of a job."""
    return [replace(drawn_call(draw, ranks, draw.choice(names)), took_us=draw.randrange(20, 90))
            for _ in range(draw.randrange(2, 9))]


def drawn_call(draw: random.Random, ranks: int, name: str) -> Call:
    dtype, n = draw.choice([*BYTES]), draw.randrange(1, 50) * ranks
    if name in ("all_reduce", "broadcast"):
        root = draw.randrange(ranks) if name == "broadcast" else None
        return Call(name, dtype, (n,) * ranks, (n,) * ranks, root=root)
    if name == "send_recv":
        pair = draw.choice([(0, ranks - 1), (ranks - 1, 0)])
        return Call(name, dtype, (n,), (n,), pair=pair)
    parts = tuple(draw.choice([n] * ranks if draw.random() < .4 else range(1, 60))
                  for _ in range(ranks))
    if name == "all_gather":
        return Call(name, dtype, parts, (sum(parts),) * ranks)
    if name == "reduce_scatter":
        return Call(name, dtype, (sum(parts),) * ranks, parts)
    rows = tuple(tuple(draw.choice(parts) for _ in range(ranks)) for _ in range(ranks))
    return Call("all_to_all", dtype, tuple(map(sum, rows)), tuple(map(sum, zip(
        *rows, strict=True))), rows)


def imported(folder: Path) -> tuple[TrafficRecord, tuple[str, ...], tuple[str, ...]]:
    """Return the record, lines on what was done, and notes on what was left out."""
    output = folder.parent / f"{folder.name}.traffic.json"
    output.unlink(missing_ok=True)
    done, notes = import_traffic([folder], output)
    return read_traffic(output), done, notes


def written(folder: Path, name: str, document: Any, *, packed: bool = False) -> None:
    folder.mkdir(exist_ok=True)
    data = json.dumps(document).encode()
    (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)


# Flight records.


class Ring:
    """The entries of a rank, as torch's recorder numbers them."""

    def __init__(self, backend: str, ranks: int, rank: int) -> None:
        self.entries: list[dict[str, Any]] = []
        self.backend, self.ranks, self.rank = backend, ranks, rank
        self.number = self.messages = 0

    def add(self, name: str, dtype: str, shapes: tuple[Any, Any], **more: Any) -> None:
        at = len(self.entries)
        self.entries.append({
            "record_id": at, "pg_id": 0, "process_group": ["0", "default_pg"],
            "collective_seq_id": self.number, "p2p_seq_id": self.messages, "op_id": at + 1,
            "profiling_name": f"{self.backend}:{name}", "time_created_ns": START + at * 10,
            "input_sizes": shapes[0], "output_sizes": shapes[1], "is_p2p": False,
            "input_dtypes": [IN_C10[dtype]] * len(shapes[0]),
            "output_dtypes": [IN_C10[dtype]] * len(shapes[1]), "state": "scheduled",
            "retired": False, "timeout_ms": 600000, **more})

    def call(self, one: Call, draw: random.Random) -> None:
        done = {"state": "completed", "retired": True, "duration_ms": one.took_us / 1e3}
        if one.pair is not None:
            if self.rank in one.pair:
                self.messages += 1
                peer = sum(one.pair) - self.rank
                way = "->" if self.rank == one.pair[0] else "<-"
                shape = [[one.n_in[0]]]
                self.add(f"{'send' if way == '->' else 'recv'} {self.rank}{way}{peer}", one.dtype,
                         (shape, shape), is_p2p=True)
                self.add("coalesced", one.dtype, ([], []), **done)
            return
        self.number += 1
        parts = {"all_gather": one.n_in, "reduce_scatter": one.n_out}.get(one.collective, ())
        if len({*parts}) > 1:
            name = {"all_gather": "_broadcast_oop", "reduce_scatter": "_reduce_oop"}[one.collective]
            end = one.collective.replace("all_g", "allg").upper() + "_coalesced"
            for part in parts:
                self.add(name, one.dtype, ([[part]], [[part]]),
                         **(done if draw.random() < .3 else {}))
            self.add(draw.choice([end, "coalesced"]), one.dtype,
                     draw.choice([([], []), ([[]], [[]])]), **done)
            return
        name = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}.get(
            one.collective, one.collective)
        shapes = [[one.n_in[self.rank]]], [[one.n_out[self.rank]]]
        if one.rows:
            shapes = ([[n] for n in one.rows[self.rank]], [[row[self.rank]] for row in one.rows])
        self.add(name, one.dtype, shapes, **done)


FLIGHT = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


@pytest.mark.parametrize("seed", range(100))
def test_flight_records(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    ranks, folder = draw.choice((2, 3, 4)), tmp_path / "rec"
    calls = drawn(draw, ranks, FLIGHT)
    lost, unreadable = draw.choice((0, 0, 1, 3)), draw.random() < .2
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(ranks)])}}
    version = draw.choice(("2.4", "2.5", "2.9", "2.10", "2.11"))
    for rank in range(ranks):
        ring = Ring("nccl", ranks, rank)
        for one in calls:
            ring.call(one, draw)
        entries = ring.entries[lost:]
        if unreadable:
            entries.append({"record_id": len(ring.entries), "profiling_name": "nccl:x"})
        draw.shuffle(entries)
        dump = {"version": version, "pg_config": config, "pg_status": {}, "entries": entries}
        if draw.random() < .5:
            dump = {"format": "hpcbench.record", "version": 1, "rank": rank, "world_size": ranks,
                    "groups": {}, "durations": [], "dumps": [dump]}
        written(folder, f"rank{rank}.json", dump)
    try:
        record, _, found = imported(folder)
    except FileError:
        assert lost
        return
    expected = Counter(one.facts() for one in calls)
    if lost:  # messages of such ranks are not matched: each counts on both
        twice = Counter({one: n * (1 + (one[0] == "send_recv")) for one, n in expected.items()})
        assert not {one for one in facts_of(record) - twice if None not in one[3]}
    else:
        assert facts_of(record) == expected
    assert all(order.unfinished == 0 and order.dropped >= lost for order in record.order)
    for order in record.order:
        assert None not in order.duration_ns and {*order.duration_ns} <= {
            one.took_us * US for one in calls}
    assert unreadable == any("entries without the keys" in note for note in found)


def test_an_open_group_waits_and_a_finished_one_does_not(tmp_path: Path) -> None:
    """Also in the record of a rank of hpcbench's own that hangs."""
    message = Call("send_recv", "fp32", (8,), (8,), pair=(0, 1))
    draw = random.Random(0)
    for is_open in (False, True):
        for rank in (0, 1):
            ring = Ring("nccl", 2, rank)
            ring.call(message, draw)
            ring.call(Call("all_reduce", "fp32", (4, 4), (4, 4)), draw)
            if is_open:
                ring.call(message, draw)
                ring.entries[-1] |= {"state": "started", "retired": False}
            dump = {"version": "2.10", "entries": ring.entries}
            written(tmp_path / f"r{is_open}", f"rank{rank}.json", dump)
        record, found, _ = imported(tmp_path / f"r{is_open}")
        assert [one.unfinished for one in record.order] == [int(is_open)] * 2
        assert any("wait in send_recv" in line for line in found) == is_open
        assert ("in recv 1<-0" in current_collective(joined([dump]))) == is_open


def test_ends_that_xccl_does_not_record_are_not_known(tmp_path: Path) -> None:
    gathered = Call("all_gather", "fp32", (2, 6), (8, 8))
    for rank in (0, 1):
        ring = Ring("xccl", 2, rank)
        for one in (Call("send_recv", "fp32", (8,), (8,), pair=(0, 1)), gathered):
            ring.call(one, random.Random(0))
        ring.entries = [one for one in ring.entries if "coalesced" not in one["profiling_name"]]
        ring.add("recv 0<-?", "fp32", ([[1]], [[1]]), is_p2p=True)
        for at, one in enumerate(ring.entries):
            one |= {"record_id": at, "state": "scheduled", "retired": False}
        written(tmp_path / "rec", f"rank{rank}.json", {"version": "2.10", "entries": ring.entries})
    record, _, found = imported(tmp_path / "rec")
    assert gathered.facts() in facts_of(record)
    assert [one.unfinished for one in record.order] == [0, 0]
    assert sum("3 entries of grouped calls of xccl" in note for note in found) == 2
    assert sum("messages from any rank" in note and note.endswith(": 1") for note in found) == 2


def test_gloos_all_gather_of_several_tensors_has_all_of_them(tmp_path: Path) -> None:
    for rank in (0, 1):
        ring = Ring("gloo", 2, rank)
        ring.number = 1
        ring.add("all_gather", "fp32", ([[100], [300]], [[2, 100]]), retired=True)
        written(tmp_path / "rec", f"rank{rank}.json", {"version": "2.10", "entries": ring.entries})
    record, _, _ = imported(tmp_path / "rec")
    one, = record.signatures
    assert (one.elements_in, one.elements_out, one.bytes) == ((400,), (800,), 3200)


def test_of_other_backends_sizes_that_disagree_are_not_proved(tmp_path: Path) -> None:
    for rank in (0, 1):
        ring = Ring("nccl", 2, rank)
        ring.add("all_gather", "fp32", ([[100], [300]], [[2, 100]]), retired=True)
        ring.add("all_reduce", "fp32", ([[4]], [[4]]), retired=True)
        ring.entries[-1] |= {"collective_seq_id": 9, "input_dtypes": ["Odd"]}
        written(tmp_path / "rec", f"rank{rank}.json", {"version": "2.10", "entries": ring.entries})
    _, _, found = imported(tmp_path / "rec")
    assert sum("not proved" in note for note in found) == 1
    assert sum("0 bytes" in note for note in found) == 1


def test_a_name_that_is_given_again_is_another_group(tmp_path: Path) -> None:
    """After destroy_process_group and init_process_group, to other members."""
    for rank in range(3):
        ring = Ring("gloo", 3, rank)
        if rank < 2:
            ring.add("all_reduce", "fp32", ([[3]], [[3]]), retired=True, pg_id=2, op_id=1)
        ring.add("all_reduce", "fp32", ([[9]], [[9]]), retired=True, pg_id=4, op_id=1)
        written(tmp_path / "rec", f"rank{rank}.json", {
            "format": "hpcbench.record", "version": 1, "rank": rank, "world_size": 3,
            "groups": {"0": {"ranks": [0, 1, 2], "description": "", "backend": "gloo"}},
            "durations": [], "dumps": [{"version": "2.10", "entries": ring.entries}]})
    record, _, _ = imported(tmp_path / "rec")
    assert [(record.groups[one.group].ranks, one.bytes, one.count)
            for one in record.signatures] == [((0, 1), 12, 1), ((0, 1, 2), 36, 1)]


@pytest.mark.parametrize(("theirs", "ours", "size"), [
    ("Char", "int8", 1), ("int8", "int8", 1), ("signed char", "int8", 1), ("Byte", "uint8", 1),
    ("c10::BFloat16", "bf16", 2), ("c10::Half", "fp16", 2), ("long int", "int64", 8),
    ("complex64", "complex64", 8), ("ComplexDouble", "complex128", 16), ("UInt16", "uint16", 2),
    ("uint32", "uint32", 4), ("UInt64", "uint64", 8), ("Short", "int16", 2), ("Bool", "bool", 1),
    ("Float8_e8m0fnu", "float8e8m0fnu", 1), ("float8_e5m2", "float8e5m2", 1),
    ("Float4_e2m1fn_x2", "float4e2m1fnx2", 1), ("ComplexHalf", "complex32", 4), ("Odd", "odd", 0)])
def test_a_type_has_one_name_and_its_size(theirs: str, ours: str, size: int) -> None:
    assert (dtype_of(theirs), item_bytes(dtype_of(theirs))) == (ours, size)


# Kineto.


def arguments(one: Call, rank: int, ranks: int, draw: random.Random) -> dict[str, Any]:
    names = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
             "all_reduce": "allreduce", "all_to_all": "all_to_allv"}
    if one.pair is not None:
        name = "send" if rank == one.pair[0] else "recv"
    else:
        name = names.get(one.collective, one.collective)
    of_rank = 0 if one.pair else rank
    rows = [list(one.rows[rank]), [row[rank] for row in one.rows]] if one.rows else [[], []]
    width = draw.choice([1, 2]) if one.rows else 1  # torch counts rows of the first dimension
    if any(n % width for row in rows for n in row):
        width = 1
    found = {
        "Collective name": name, "dtype": IN_C10[one.dtype], "In msg nelems": one.n_in[of_rank],
        "Out msg nelems": one.n_out[of_rank], "Group size": ranks, "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "In split size": str([n // width for n in rows[0]]),
        "Out split size": str([n // width for n in rows[1]])}
    if one.pair:
        found |= {"Src Rank": one.pair[0], "Dst Rank": one.pair[1]}
    return found | draw.choice([{"Process Group Ranks": str([*range(ranks)])}, {
        "Process Group Ranks": "[0, ...]", "Global rank start": 0, "Global rank stride": 1}])


def kineto_events(
    calls: Sequence[Call], rank: int, ranks: int, draw: random.Random, how: str,
) -> Iterator[dict[str, Any]]:
    """Yield notes and kernels of calls; ``how`` kernels name their call, and have arguments."""
    for at, one in enumerate(calls):
        if one.pair and rank not in one.pair:
            continue
        args = arguments(one, rank, ranks, draw)
        number, begins = 100 + at, 1000.0 * (at + 1)
        if how != "no notes":
            yield {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": begins, "dur": 5,
                   "args": {"External id": number, **args}}
        pieces = draw.choice((1, 1, 3)) if how in ("id", "launch") else 1
        for piece in range(pieces):
            ids: dict[str, Any] = {"correlation": number * 10 + piece}
            if how == "id":
                ids["External id"] = number
            if how == "launch":
                yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC",
                       "ts": begins + 1, "dur": 1, "args": {**ids, "External id": number}}
            with_args = how in ("form", "no notes") or draw.random() < .5
            yield {"ph": "X", "cat": "kernel", "ts": begins + 10 + one.took_us / pieces * piece,
                   "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
                   "dur": one.took_us / pieces, "args": {**ids, **(args if with_args else {})}}


@pytest.mark.parametrize("seed", range(100))
def test_kineto(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    ranks, folder = draw.choice((2, 3, 4)), tmp_path / "rec"
    calls = drawn(draw, ranks, FLIGHT)
    how = draw.choice(("id", "launch", "form", "no notes", "nameless"))
    for rank in range(ranks):
        events = [*kineto_events(calls, rank, ranks, draw, how)]
        if how == "nameless":
            for event in events:
                if event["cat"] == "kernel":
                    event["args"] = {}
        if not events:
            events = [*kineto_events(calls[:1], 0, ranks, draw, "form")]
        draw.shuffle(events)
        row = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo,cuda:nccl",
               "pg_size": ranks, "ranks": [*range(ranks)]}
        written(folder, f"{rank}.pt.trace.json", {"schemaVersion": 1, "distributedInfo": {
            "backend": "cpu:gloo,cuda:nccl", "rank": rank, "world_size": ranks,
            "pg_config": draw.choice([[row], {"0": row}])}, "traceEvents": events},
            packed=draw.random() < .2)
    record, _, found = imported(folder)
    if not all(any(one.pair is None or rank in one.pair for one in calls)
               for rank in range(ranks)):
        return
    assert facts_of(record) == Counter(one.facts() for one in calls)
    assert {one.backend for one in record.signatures} == {"nccl"}
    durations = [one for order in record.order for one in order.duration_ns]
    if how == "nameless":
        assert {*durations} == {None}
        assert any("kernels of NCCL without arguments" in note for note in found)
    else:
        assert {one for one in durations if one} <= {one.took_us * US for one in calls}
        assert None not in durations and all(
            gap is None or gap >= 0 for order in record.order for gap in order.gap_ns)


def test_a_profile_of_a_part_of_a_job_has_calls_with_and_without_kernels(tmp_path: Path) -> None:
    """The first has no note, as the host issued it before; the last has not begun."""
    calls = [Call("all_reduce", "fp32", (n, n), (n, n)) for n in (4, 8, 12)]
    for rank in (0, 1):
        events = [*kineto_events(calls, rank, 2, random.Random(1), "form")]
        written(tmp_path / "rec", f"rank{rank}.json", {
            "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events[1:-1]})
    record, _, found = imported(tmp_path / "rec")
    assert facts_of(record) == Counter(one.facts() for one in calls)
    assert record.order[0].duration_ns == (50 * US, 50 * US, None)
    assert sum("1 calls without a kernel" in note for note in found) == 2


@pytest.mark.parametrize(("event", "word"), [
    ({"cat": "kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"}, "2.2"),
    ({"cat": "cpu_op", "name": "record_param_comms"}, "2.2"),
    ({"cat": "user_annotation", "name": "gloo:all_reduce"}, "hpcbench record"),
    ({"cat": "cpu_op", "name": "record_param_comms", "args": {"Collective name": "allreduce"}},
     "without the arguments")])
def test_a_profile_without_sizes_says_what_it_lacks(
    tmp_path: Path, event: dict[str, Any], word: str,
) -> None:
    events = [{"ph": "X", "ts": 1, "dur": 1, "args": {"External id": 3}, **event}] * 7
    written(tmp_path / "rec", "rank0.json", {"traceEvents": events})
    with pytest.raises(FileError, match=rf"7 .*{word}"):
        imported(tmp_path / "rec")


# Execution traces.


def execution_node(
    one: Call, at: int, rank: int, ranks: int, schema: tuple[int, int, int],
) -> dict[str, Any]:
    """Return a node as the torch of a schema wrote it."""
    item, kind = BYTES[one.dtype], f"GenericList[Tensor({IN_CPP[one.dtype]})]"
    args = arguments(one, rank, ranks, random.Random(at))
    of_rank = 0 if one.pair else rank
    n_in, n_out = one.n_in[of_rank], one.n_out[of_rank]
    tensors = [[[20, 30, 0, n, item, "cuda:0"]] for n in (n_in, n_out)]
    peer = sum(one.pair) - rank if one.pair else rank if one.root is None else one.root
    splits = [json.loads(args[f"{way} split size"]) for way in ("In", "Out")]
    group: Any = {1: 139637976727552 + rank, 2: "0"}.get(schema[2], ["0", "default_pg"])
    if schema[:2] == (1, 1):
        group = ["0", "default_pg"]
    place = [ranks] if schema == (1, 0, 1) else [0, 1, ranks]
    number = [at, bool(one.pair)] if schema[:2] == (1, 1) else at
    values = [tensors[0], number, group, peer, args["Collective name"], *splits, *place]
    node = {"id": at + 10, "name": "record_param_comms"}
    if schema == (1, 0, 1):
        return {**node, "parent": 1, "inputs": values, "input_types": [kind],
                "outputs": [tensors[1]], "output_types": [kind]}
    attrs = {"collective_name": args["Collective name"], "dtype": IN_C10[one.dtype],
             "in_msg_nelems": n_in, "out_msg_nelems": n_out} if schema[:2] == (1, 1) else {}
    return {**node, "ctrl_deps": 1, "inputs": {"values": values, "types": [kind]},
            "outputs": {"values": [tensors[1]], "types": [kind]},
            "attrs": [{"name": "rf_id", "type": "uint64", "value": 0}, *(
                {"name": name, "type": "", "value": value} for name, value in attrs.items())]}


@pytest.mark.parametrize("seed", range(70))
def test_execution_traces(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    ranks, folder = draw.choice((2, 3, 4)), tmp_path / "rec"
    calls = [one for one in drawn(draw, ranks, FLIGHT) if not one.pair] or [
        drawn_call(draw, ranks, "all_reduce")]
    schema = draw.choice([(1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 0, 4), (1, 1, 0), (1, 1, 1)])
    has_list, given = draw.random() < .5 and schema != (1, 0, 1), draw.random() < .5
    for rank in range(ranks):
        nodes = [execution_node(one, at, rank, ranks, schema) for at, one in enumerate(calls)]
        if has_list:
            text = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [],
                                "backend_config": "cpu:gloo,cuda:nccl", "group_size": ranks}])
            nodes.append({"id": 2, "name": "## process_group:init ##",
                          "inputs": {"values": [text]}})
        draw.shuffle(nodes)
        text = ".".join(map(str, schema)) + ("-chakra.0.0.4" if schema != (1, 0, 1) else "")
        written(folder, f"rank-{rank}.json", {"schema": text, "pid": 1, "nodes": nodes})
    output = tmp_path / "t.json"
    import_traffic([folder], output, "gloo" if given else None)
    record = read_traffic(output)
    assert facts_of(record) == Counter(one.facts() for one in calls)
    assert {one.backend for one in record.signatures} == {
        "nccl" if has_list else "gloo" if given else None}
    assert record.world_size == ranks and [one.ranks for one in record.groups] == [
        tuple(range(ranks))]
    assert {one.root for one in record.signatures if one.collective == "broadcast"} == {
        one.root for one in calls if one.collective == "broadcast"}


@pytest.mark.parametrize(("schema", "group", "word"), [
    ("1.0.0", "0", "schema 1.0.0"), ("1.2.0-chakra.0.0.4", "0", "schema 1.2.0"),
    ("2.0.0", "0", "schema 2.0.0"), ("", "0", "schema unknown"), ("1.0.1", None, "1.0.1")])
def test_other_schemas_are_refused_by_number(
    tmp_path: Path, schema: str, group: str | None, word: str,
) -> None:
    """Also two groups that are named by addresses, which are others on each rank."""
    call = Call("all_reduce", "fp32", (4, 4), (4, 4))
    nodes = [execution_node(call, at, at, 2, (1, 0, 1)) for at in range(2)]
    written(tmp_path / "rec", "rank0.json", {"schema": schema, "nodes": nodes})
    with pytest.raises(FileError, match=word):
        imported(tmp_path / "rec")


# Whose rank.


@pytest.mark.parametrize(("name", "rank"), [
    ("rank1.json", 1), ("et_rank_1.json", 1), ("rank-1.json", 1), ("1.json", 1),
    ("RANK1.x.json", 1),
    ("resnet_2gpu_et.json", None), ("resnet_1gpu_et.json", None), ("et_1.json", None),
    ("node1_41234.1790857026000000000.pt.trace.json", None), ("rank7.json", None),
    ("7.json", None), ("rank0_rank1.json", None), ("frank1.json", None)])
def test_a_rank_is_not_guessed(tmp_path: Path, name: str, rank: int | None) -> None:
    call = Call("all_reduce", "fp32", (4, 4), (4, 4))
    written(tmp_path / "rec", name, {"schema": "1.1.0", "nodes": [
        execution_node(call, 0, 1, 2, (1, 1, 0))]})
    if rank is None:
        with pytest.raises(FileError, match="which rank"):
            imported(tmp_path / "rec")
    else:
        record, _, _ = imported(tmp_path / "rec")
        assert [one.rank for one in record.order] == [rank] and record.world_size == 2


# NCCL Inspector.


@pytest.mark.parametrize("seed", range(40))
def test_inspectors_lines(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    names = {"AllReduce": "all_reduce", "All2All": "all_to_all", "AlltoAll": "all_to_all",
             "AllGather": "all_gather", "AllGatherV": "all_gather", "Invalid": "",
             "ReduceScatter": "reduce_scatter"}
    calls = [(draw.choice([*names]), 8192 * draw.randrange(1, 9)) for _ in range(6)]
    calls[0] = "AllReduce", 8192
    lines, torn = [], draw.random() < .3
    indent = draw.choice([None, 1])
    for rank in (0, 1):
        header = {"id": "0xab", "rank": rank, "n_ranks": 2, "nnodes": 1}
        metadata = {"inspector_output_format_version": "v4.0", "hostname": "n", "pid": 10 + rank}
        for at, (name, size) in enumerate(calls):
            lines.append(json.dumps({"header": header, "metadata": metadata, "coll_perf": {
                "coll": name, "coll_sn": at, "coll_msg_size_bytes": size,
                "coll_exec_time_us": 50 + rank}}, indent=indent))
    if torn:
        lines[-1:] = [lines[-1][:40]]
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec/nccl.log").write_text("\n".join(lines))
    record, _, found = imported(tmp_path / "rec")
    read = Counter((one.collective, one.bytes) for one in record.signatures
                   for _ in range(one.count))
    assert read == Counter((names[name], size) for name, size in calls if names[name])
    nameless = 2 * sum(not names[name] for name, _ in calls) - (torn and not names[calls[-1][0]])
    assert any("left out calls named Invalid" in note and note.endswith(f": {nameless}")
               for note in found) == (nameless > 0)
    assert any(": left out lines" in note for note in found) == torn


# What is replayed.


@pytest.mark.parametrize(("n_in", "n_out", "rows", "why"), [
    ((8, 8), (8, 8), None, ""), ((6, 10), (8, 8), None, "not recorded"),
    ((8, 8), (6, 10), None, "not recorded"), ((7, 7), (7, 7), None, "not recorded"),
    ((6, 10), (8, 8), ((2, 4), (6, 4)), "different sizes")])
def test_an_all_to_all_that_is_proved_uneven_is_not_replayed_evenly(
    tmp_path: Path, n_in: tuple[int, ...], n_out: tuple[int, ...], rows: Any, why: str,
) -> None:
    for rank in (0, 1):
        ring = Ring("gloo", 2, rank)
        shapes = [[n_in[rank]]], [[n_out[rank]]]
        if rows:
            shapes = [[n] for n in rows[rank]], [[row[rank]] for row in rows]
        for number in range(6):
            ring.number = number
            ring.add("all_to_all", "fp32", shapes, retired=True)
        written(tmp_path / "rec", f"rank{rank}.json", {"version": "2.10", "entries": ring.entries})
    record, _, _ = imported(tmp_path / "rec")
    path = tmp_path / "traffic.json"
    path.write_text(traffic_text(record))
    in_order = sequence_of(record, Request(2, "gloo", "cpu", 9, "none"))
    assert in_order.n_calls == (0 if why == "not recorded" else 6)
    if why == "not recorded":
        with pytest.raises(ConfigError, match=why):
            load_config(path)
        return
    block, = load_config(path).benchmarks
    assert block.kind == ("replay" if rows else "collective")
