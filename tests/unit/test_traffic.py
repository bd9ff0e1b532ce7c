"""Records of a job's communication: what traffic.json has of them, and what is refused."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest

from hpcbench.errors import FileError
from hpcbench.interop.traffic.imported import import_traffic, write_traffic
from hpcbench.interop.traffic.startup.sitecustomize import ask_ras
from hpcbench.operations.traffic import TrafficRecord, problem_of, read_traffic, traffic_text

MS = 1_000_000


def entry(number: int, name: str = "all_reduce", n: int = 1000, **more: Any) -> dict[str, Any]:
    sizes = {"barrier": ([], []), "all_gather": ([[n]], [[2, n]])}.get(name, ([[n]], [[n]]))
    return {"record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"],
            "collective_seq_id": number + 1, "p2p_seq_id": 0, "op_id": number + 1, "is_p2p": False,
            "profiling_name": f"gloo:{name}", "input_sizes": sizes[0], "output_sizes": sizes[1],
            "input_dtypes": ["Float"] * len(sizes[0]), "output_dtypes": ["Float"] * len(sizes[1]),
            "time_created_ns": 10**18 + number * MS, "state": "scheduled", "retired": True, **more}


def flight(
    folder: Path, rank: int, entries: Sequence[dict[str, Any]], version: str = "2.10",
    name: str = "", **more: Any,
) -> Path:
    """Write what `hpcbench record` writes of a rank."""
    path = folder / (name or f"rank{rank:05}.json")
    dump = {"version": version, "pg_config": {}, "pg_status": {}, "entries": entries}
    path.write_text(json.dumps({
        "format": "hpcbench.record", "version": 1, "rank": rank, "world_size": 2, "durations": [],
        "groups": {"0": {"ranks": [0, 1], "description": "default_pg", "backend": "gloo"}},
        **more, "dumps": [dump]}))
    return path


def traffic(*paths: Path) -> tuple[TrafficRecord, str]:
    """Return what is imported, and all notes as one text."""
    output = paths[0].parent / f"traffic{random.random()}.json"
    _, notes = import_traffic(paths, output)
    record = read_traffic(output)
    output.unlink()
    return record, "\n".join(notes)


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Return the records of two ranks that call the same."""
    calls = [entry(0, "broadcast"), entry(1), entry(2), entry(3, "all_gather", 8),
             entry(4, "barrier")]
    return [flight(tmp_path, rank, calls) for rank in (0, 1)]


def test_an_all_gather_gives_the_parts_of_all_ranks(tmp_path: Path) -> None:
    """Of lists of results, such as DTensor's on gloo, torch records that of one rank."""
    part = entry(0, "all_gather", 8) | {"output_sizes": [[1, 8]]}
    groups = {name: {"ranks": ranks, "description": "", "backend": "gloo"}
              for name, ranks in (("0", [0, 1]), ("1", [0, 1, 2]))}
    calls = [part, entry(1, process_group=["1", "more"], pg_id=1)]
    record, _ = traffic(*[flight(tmp_path, rank, calls, groups=groups) for rank in (0, 1)])
    one, _ = record.signatures
    assert (one.elements_in, one.elements_out, one.bytes) == ((8,), (16,), 64)


def test_forms_counts_order_and_gaps(pair: list[Path]) -> None:
    record, notes = traffic(*pair)
    assert [(one.collective, one.count, one.bytes, one.elements_in, one.elements_out)
            for one in record.signatures] == [
        ("broadcast", 1, 4000, (1000,), (1000,)), ("all_reduce", 2, 4000, (1000,), (1000,)),
        ("all_gather", 1, 64, (8,), (16,)), ("barrier", 1, 0, (0,), (0,))]
    assert {one.operator for one in record.signatures} == {None} and "operator" in notes
    assert [one.rank for one in record.order] == [0, 1]
    for one in record.order:
        assert one.signature == (0, 1, 1, 2, 3) and one.sequence == (1, 2, 3, 4, 5)
        assert one.gap_ns == (None, MS, MS, MS, MS) and one.dropped == 0
    assert record.world_size == 2 and record.missing == ()
    assert [group.ranks for group in record.groups] == [(0, 1)]


def test_what_is_written_is_read(pair: list[Path], tmp_path: Path) -> None:
    record, _ = traffic(*pair)
    path = tmp_path / "again.json"
    write_traffic(record, path)
    assert read_traffic(path) == record
    with pytest.raises(FileError, match="exists"):
        write_traffic(record, path)


@pytest.mark.parametrize(("old", "new", "what"), [
    ('"version": 1', '"version": 2', "version 2"), ("hpcbench.traffic", "other", "no traffic"),
    ('"signature": [0, ', '"signature": [9, ', "signature"), ('"group": 0', '"group": 7', "group"),
    ('"ranks": [0, 1]', '"ranks": [0, 5]', "ranks"), ('"count": 1', '"count": "x"', "count"),
    ('"count": 1', '"count": true', "count"), ('"version": 1', '"version": true', "version True"),
    ('"root": null', '"root": 2', "below 2"),
    ('"splits_in": null', '"splits_in": [[1], [1]]', "2 rows"),
    ('"gap_ns": [null, ', '"gap_ns": [', "columns"), ("}\n", "", "no traffic")])
def test_a_wrong_traffic_file_is_refused(
    pair: list[Path], tmp_path: Path, old: str, new: str, what: str,
) -> None:
    text = traffic_text(traffic(*pair)[0])
    assert old in text
    path = tmp_path / "wrong.json"
    path.write_text(text.replace(old, new))
    with pytest.raises(FileError, match=what):
        read_traffic(path)


@pytest.mark.parametrize("key", ["record_id", "collective_seq_id", "time_created_ns"])
@pytest.mark.parametrize("value", [True, 1.5])
def test_what_is_no_whole_number_is_not_read_as_one(
    pair: list[Path], tmp_path: Path, key: str, value: float,
) -> None:
    calls = sum(len(one.signature) for one in traffic(*pair)[0].order)
    data = json.loads(pair[1].read_text())
    data["dumps"][0]["entries"][0][key] = value
    pair[1].write_text(json.dumps(data))
    record, notes = traffic(*pair)
    assert sum(len(one.signature) for one in record.order) < calls and "entr" in notes


def test_order_in_a_file_does_not_matter(pair: list[Path], tmp_path: Path) -> None:
    record, _ = traffic(*pair)
    data = json.loads(pair[1].read_text())
    random.Random(1).shuffle(data["dumps"][0]["entries"])
    pair[1].write_text(json.dumps(data))
    assert replace(traffic(*reversed(pair))[0], files=record.files) == record


def test_what_the_ring_lost_is_counted_and_has_no_gap(tmp_path: Path) -> None:
    entries = [entry(number) for number in (5, 6, 9)]
    record, _ = traffic(flight(tmp_path, 0, entries), flight(tmp_path, 1, entries))
    assert record.order[0].dropped == 7
    assert record.order[0].gap_ns == (None, MS, None)


def test_a_truncated_file_costs_its_rank(pair: list[Path], tmp_path: Path) -> None:
    pair[1].write_text(pair[1].read_text()[:-40])
    record, notes = traffic(tmp_path)
    assert record.missing == (1,) and "rank00001.json" in notes
    for ranks in ((), (0, 1), (5,)):
        assert problem_of(replace(record, missing=ranks)).startswith("missing: ")
    with pytest.raises(FileError, match="rank00001"):
        traffic(pair[1])


def test_of_two_records_of_a_rank_the_newest_counts(pair: list[Path], tmp_path: Path) -> None:
    flight(tmp_path, 1, [entry(0)], name="rank00001.2.json")
    record, notes = traffic(tmp_path)
    assert len(record.order[1].signature) == 5 and "rank 1 has 2 records" in notes


def test_mixed_versions_are_reported_and_unknown_ones_left_out(tmp_path: Path) -> None:
    paths = [flight(tmp_path, rank, [entry(0)], version)
             for rank, version in enumerate(("2.10", "2.4", "1.9", "3.0"))]
    record, notes = traffic(*paths)
    assert "versions differ" in notes and "version 1.9" in notes and "version 3.0" in notes
    assert [one.rank for one in record.order] == [0, 1]


def test_a_pickle_is_refused_unread(tmp_path: Path) -> None:
    path, canary = tmp_path / "rank0", tmp_path / "ran"
    path.write_bytes(b"\x80\x04cposix\nsystem\n(X" + bytes([len(f"touch {canary}"), 0, 0, 0])
                     + f"touch {canary}".encode() + b"tR.")
    with pytest.raises(FileError, match="never loaded"):
        traffic(path)
    assert not canary.exists()


def test_ranks_that_disagree_are_not_matched(tmp_path: Path) -> None:
    record, notes = traffic(flight(tmp_path, 0, [entry(0), entry(1)]),
                            flight(tmp_path, 1, [entry(0), entry(1, "broadcast")]))
    assert sorted((one.collective, one.count) for one in record.signatures) == [
        ("all_reduce", 2), ("broadcast", 1)]
    assert "1 call not matched" in notes


def test_who_waits_where_and_who_has_not_come(tmp_path: Path) -> None:
    groups = {"groups": {"0": {"ranks": [0, 1, 2, 3], "description": "", "backend": "gloo"}},
              "world_size": 4}
    waits = [entry(0), entry(1, retired=False)]
    other = entry(1, retired=False, process_group=["1", "pair"], pg_id=1)
    files = [flight(tmp_path, 0, waits, **groups), flight(tmp_path, 2, waits, **groups),
             flight(tmp_path, 1, [entry(0), other], **groups)]
    lines, _ = import_traffic(files, tmp_path / "hang.json")
    (world, pair) = (line for line in lines if line.startswith("group "))
    assert "0, 2" in world and "all_reduce #2" in world and "no record of rank 3" in world
    assert "rank 1 " in world and "group 1" in world and "#2" in pair
    over = [flight(tmp_path, rank, [entry(0)], name=f"over{rank}.json") for rank in (0, 1)]
    done, _ = import_traffic(over, tmp_path / "over.json")
    assert not [line for line in done if line.startswith("group ")]


def test_all_reduces_of_a_noted_reduce_scatter_are_that_call(tmp_path: Path) -> None:
    """One of a list of two parts, whose own all_reduces torch records, and one of a tensor."""
    calls = [entry(0), entry(1, n=30), entry(2, n=50), entry(3, n=80), entry(4)]
    within = [[10**18 + MS // 2, 10**18 + 2 * MS, "0", [[2, 80, 30]]],
              [10**18 + 3 * MS, 10**18 + 3 * MS, "0", [[1, 80, 40]]]]
    times = [["gloo:all_reduce", 10**18 + at * MS, 1000 + at] for at in range(5)]
    record, notes = traffic(*[flight(tmp_path, rank, calls, scatters=within, durations=times)
                              for rank in (0, 1)])
    assert [(one.collective, one.elements_in, one.elements_out, one.bytes, one.count)
            for one in record.signatures] == [
        ("all_reduce", (1000,), (1000,), 4000, 2), ("reduce_scatter", (80,), (30,), 320, 1),
        ("reduce_scatter", (80,), (40,), 320, 1)]
    assert record.order[0].sequence == (1, 2, 4, 5)
    assert record.order[0].duration_ns == (1000, None, 1003, 1004)
    assert record.order[0].dropped == 0 and "as the all_reduce" not in notes


def test_a_reduce_scatter_whose_first_entries_are_lost_is_left_out(tmp_path: Path) -> None:
    calls = [entry(3, n=50), entry(4)]
    within = [[10**18, 10**18 + MS, "0", [[1, 8, 4]]],
              [10**18 + 2 * MS, 10**18 + 3 * MS, "0", [[2, 80, 30]]]]
    record, _ = traffic(*[flight(tmp_path, rank, calls, scatters=within) for rank in (0, 1)])
    assert [(one.collective, one.count) for one in record.signatures] == [("all_reduce", 1)]
    assert record.order[0].dropped == 3 + 1


def test_messages_of_gloo_that_record_noted_are_calls(tmp_path: Path) -> None:
    sent = [[10**18 + number, True, "0", 1, 8, "bfloat16"] for number in range(3)]
    got = [[began, False, name, 0, n, dtype] for began, _, name, _, n, dtype in sent]
    record, notes = traffic(flight(tmp_path, 0, [], messages=sent),
                            flight(tmp_path, 1, [], messages=got, messages_lost=2))
    one, = record.signatures
    assert (one.collective, one.pair, one.dtype, one.bytes, one.backend) == (
        "send_recv", (0, 1), "bf16", 16, "gloo")
    assert [order.dropped for order in record.order] == [0, 2] and "no entry" not in notes


def test_nccls_ras_names_who_is_behind(tmp_path: Path) -> None:
    ranks = [{"rank": rank, "host": "n1", "collective_counts": {"AllReduce": 7 - (rank == 1)}}
             for rank in (0, 1, 2)]
    ras = {"communicators": [{"hash": "0xab", "size": 4, "ranks": ranks, "missing_ranks": [
        {"rank": 3, "host": "n2", "status": {"considered_dead": True}}]}]}
    for number, (answer, expected) in enumerate(((json.dumps(ras), 2), ("no JSON", 1), ("", 0))):
        file = flight(tmp_path, 0, [entry(0, retired=False)], name=f"r{number}.json", ras=answer)
        done, _ = import_traffic([file], tmp_path / f"t{number}.json")
        found = [line for line in done if line.startswith("NCCL RAS")]
        assert len(found) == expected
        if expected == 2:
            assert "rank 3 on n2" in found[0] and "AllReduce: rank 1 6, others 7" in found[1]


def test_nccls_ras_diagnostics_are_notes_but_for_what_is_right(tmp_path: Path) -> None:
    said = ("[OK]   GPU inventory: 8x H200 per node consistent across 16 ranks in comm 0x1\n"
            "[INFO] NCCL environment: NCCL_ALGO=Ring on rank(s) 3\n")
    _, notes = traffic(flight(tmp_path, 0, [entry(0)], ras_diagnostics=said))
    assert "NCCL_ALGO=Ring on rank(s) 3" in notes and "GPU inventory" not in notes


@pytest.mark.parametrize("answers", [True, False])
def test_ras_is_asked_in_its_protocol(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    asked: list[str] = []

    class Ras(StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                asked.append(line.decode().strip())
                if asked[-1] == "VERBOSE STATUS":
                    self.wfile.write(b'{"communicators": []}')
                    return
                if asked[-1] == "DIAGNOSTICS":  # before NCCL 2.31
                    self.wfile.write(b"ERROR: Unknown command diagnostics\n")
                    return
                said = b"SERVER PROTOCOL 3\n" if asked[-1].startswith("CLIENT") else b"OK\n"
                self.wfile.write(said if answers else b"ERROR: unknown command\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Ras) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.server_address[1]}")
        answer = ask_ras()
        first = list(asked)
        assert ask_ras("DIAGNOSTICS", "text") == ""
        server.shutdown()
    assert answer == ('{"communicators": []}' if answers else "")
    assert first == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"][
        :4 if answers else 1]
    assert ask_ras() == ""  # nobody listens there now


def test_the_root_of_a_gather_is_the_rank_with_its_result(tmp_path: Path) -> None:
    record, _ = traffic(
        flight(tmp_path, 0, [entry(0, "gather", 4, output_sizes=[])]),
        flight(tmp_path, 1, [entry(0, "gather", 4, output_sizes=[[2, 4]])]))
    one, = record.signatures
    assert one.root == 1 and one.elements_out == (0, 8) and one.bytes == 32


def test_gloos_durations_are_matched_in_order(tmp_path: Path) -> None:
    """The profiler starts within the first call and sees an operation that is not recorded."""
    created = 10**18
    for rank in (0, 1):
        flight(tmp_path, rank, [entry(0), entry(1), entry(2)], durations=[
            ["gloo:send", created, 1], ["gloo:all_reduce", created + MS + 50, 2000 + rank],
            ["gloo:all_reduce", created + 5 * MS, 3000]])
    record, notes = traffic(tmp_path)
    assert record.order[1].duration_ns == (None, 2001, 3000)
    assert record.order[1].wait_ns == (None, 1, 0) and "1 gloo:all_reduce without" in notes


def test_both_recorders_are_joined(tmp_path: Path) -> None:
    path = flight(tmp_path, 0, [entry(0)])
    data = json.loads(path.read_text())
    data["dumps"].append({"version": "2.10", "pg_config": {"0": {
        "name": "7", "desc": "tp", "ranks": "[0, 1]"}}, "entries": [entry(
            0, process_group=["7", "tp"], profiling_name="nccl:_all_gather_base", duration_ms=1.5,
            time_created_ns=1)]})
    path.write_text(json.dumps(data))
    record, _ = traffic(path)
    assert [(one.collective, one.backend) for one in record.signatures] == [
        ("all_gather", "nccl"), ("all_reduce", "gloo")]
    assert record.order[0].duration_ns == (1_500_000, None)


def test_torchs_own_dump_has_its_rank_in_the_name(tmp_path: Path) -> None:
    for rank in (0, 1):
        dump = {"version": "2.4", "entries": [entry(0)]}
        (tmp_path / f"trace_rank_{rank}.json").write_text(json.dumps(dump))
    record, notes = traffic(tmp_path)
    assert record.world_size == 2 and record.groups[0].assumed and "not listed" in notes
    (tmp_path / "nameless.json").write_text(json.dumps(dump))
    with pytest.raises(FileError, match="which rank"):
        traffic(tmp_path / "nameless.json")


def kineto(path: Path, rank: int, late_ms: float) -> Path:
    """Write a trace of three all-reduces of 2 ms, to which the other rank is so late."""
    args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024,
            "Out msg nelems": 1024, "Group size": 2, "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]", "In split size": "[]", "Out split size": "[]"}
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [{"ph": "X", "cat": "kernel", "name": kernel, "ts": 1e6 + at * 1e4 + 0.125,
               "dur": 2000 + (late_ms * 1e3 if rank == 0 else 0), "args": {**args, "Seq": at}}
              for at in range(3)]
    other = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1, "args": {}}
    document = {"schemaVersion": 1, "distributedInfo": {
        "backend": "nccl", "rank": rank, "world_size": 2}, "traceEvents": [other, *events],
        "traceName": "x"}
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("late_ms", [0, 5])
def test_waits_are_those_of_delays(tmp_path: Path, late_ms: float) -> None:
    record, _ = traffic(kineto(tmp_path / "a.json", 0, late_ms),
                        kineto(tmp_path / "b.json.gz", 1, late_ms))
    one, = record.signatures
    assert (one.collective, one.operator, one.dtype, one.count, one.bytes) == (
        "all_reduce", "sum", "fp32", 3, 4096)
    assert one.transfer is not None and one.transfer.max_ns == 2 * MS
    assert one.wait is not None and one.wait.max_ns == late_ms * MS
    assert record.order[0].wait_ns == (late_ms * MS,) * 3
    assert record.order[1].wait_ns == (0, 0, 0)
    assert record.order[1].gap_ns == (None, 10 * MS, 10 * MS)


def test_one_rank_alone_has_no_waits(tmp_path: Path) -> None:
    record, notes = traffic(kineto(tmp_path / "a.json", 0, 0))
    assert record.signatures[0].wait is None and record.signatures[0].duration is not None
    assert record.missing == (1,) and "rank 1 has no record" in notes


def test_a_trace_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = kineto(tmp_path / "a.json", 0, 0)
    for size in (400, 900, len(path.read_bytes()) - 3):
        cut = tmp_path / "cut.json"
        cut.write_bytes(path.read_bytes()[:size])
        with pytest.raises(FileError, match="cut"):
            traffic(cut)


def test_programs_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="different programs"):
        traffic(kineto(tmp_path / "a.json", 0, 0), flight(tmp_path, 1, [entry(0)]))


def execution_trace(path: Path, rank: int) -> Path:
    tensor = [1, 2, 0, 256, 4, "cuda:0"]

    def node(number: int, name: str, rank_or_root: int, sequence: int) -> dict[str, Any]:
        return {"id": number, "name": "record_param_comms", "ctrl_deps": 1, "inputs": {"values": [
            [tensor], [sequence, False], ["0", "default_pg"], rank_or_root, name, [], [], 0, 1, 2]},
            "outputs": {"values": []}, "attrs": [
                {"name": "collective_name", "type": "string", "value": name},
                {"name": "dtype", "type": "string", "value": "BFloat16"},
                {"name": "in_msg_nelems", "type": "uint64", "value": 256},
                {"name": "out_msg_nelems", "type": "uint64", "value": 256}]}

    wait = {"id": 9, "name": "record_param_comms", "attrs": [], "inputs": {
        "values": [1, ["0", ""], rank, "wait", [], [], 0, 1, 2]}}
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [
        node(8, "allreduce", rank, 2), wait, node(5, "broadcast", 1, 1)], "finish_ts": 3}))
    return path


def test_an_execution_trace_has_roots_and_no_times(tmp_path: Path) -> None:
    record, notes = traffic(*(execution_trace(tmp_path / f"rank-{rank}.json", rank)
                              for rank in (0, 1)))
    assert [(one.collective, one.root, one.dtype, one.bytes, one.count, one.duration)
            for one in record.signatures] == [
        ("broadcast", 1, "bf16", 512, 1, None), ("all_reduce", None, "bf16", 512, 1, None)]
    assert record.order[0].gap_ns == (None, None) and "no durations" in notes


def inspector_line(rank: int, number: int, time_us: float) -> str:
    return json.dumps({
        "header": {"id": "0xab", "rank": rank, "n_ranks": 2, "nnodes": 1}, "metadata": {
            "inspector_output_format_version": "v4.0", "hostname": "n1", "pid": 10 + rank,
            "dump_timestamp_us": number}, "coll_perf": {
            "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 65536,
            "coll_exec_time_us": time_us, "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.0}})


def test_inspectors_lines_match_by_communicator_and_number(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(inspector_line(rank, number, 100 + 5 * rank)
                              for rank in (0, 1) for number in (2, 1)))
    record, notes = traffic(path)
    one, = record.signatures
    assert (one.count, one.bytes, one.dtype, one.elements_in) == (2, 65536, None, (None,))
    assert record.order[1].wait_ns == (5000, 5000) and record.order[0].sequence == (1, 2)
    assert "8192" in notes


def test_the_first_calls_can_be_left_out_on_all_their_ranks(tmp_path: Path) -> None:
    """Rank 1 lost its first call, so that its second is the third of the group."""
    calls = [entry(0, "all_gather", 8), *(entry(number) for number in range(1, 5))]
    paths = [flight(tmp_path, rank, calls[rank:]) for rank in (0, 1)]
    for skipped, first, note in ((1, 3, "first 2 calls (--skip-first 1)"),
                                 (2, 4, "first 3 calls (--skip-first 2)")):
        output = tmp_path / f"{skipped}.json"
        _, notes = import_traffic(paths, output, skip_first=skipped)
        record = read_traffic(output)
        assert note in "\n".join(notes)
        assert [one.sequence[0] for one in record.order] == [first, first]
        assert [one.gap_ns[0] for one in record.order] == [None, None]
        assert sum(one.count for one in record.signatures) == 5 - skipped - 1
    with pytest.raises(FileError, match="no call is left; the rank with most has 5"):
        import_traffic(paths, tmp_path / "none.json", skip_first=5)


@pytest.mark.parametrize(("names", "skipped", "start"), [
    ("grb" + "ar" * 9, 0, 3),  # r is of the start, too, but recurs
    ("grb" + "ar" * 9, 1, 3), ("grb" + "ar" * 9, 3, 0), ("ar" * 9 + "g", 0, 0), ("gbra", 0, 0),
    ("rgb" + "ar" * 9 + "b", 0, 2)])
def test_import_says_from_which_call_on_calls_recur(
    tmp_path: Path, names: str, skipped: int, start: int,
) -> None:
    words = {"g": "all_gather", "b": "broadcast", "a": "all_reduce", "r": "reduce"}
    calls = [entry(number, words[name], 8) for number, name in enumerate(names)]
    paths = [flight(tmp_path, rank, calls) for rank in (0, 1)]
    lines, _ = import_traffic(paths, tmp_path / "traffic.json", skip_first=skipped)
    assert [line.split("--skip-first ")[1].split()[0] for line in lines
            if "--skip-first" in line] == [str(start)] * bool(start)
