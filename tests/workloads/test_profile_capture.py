"""torch's profiler around samples of one process: markers, anchors, and its flight recorder."""

from __future__ import annotations

import json
import os
import time

import pytest
import torch
import torch.distributed as dist

from hpcbench.backends.devices import CpuDevice
from hpcbench.measurement.control import SharedProgress
from hpcbench.measurement.loop import FixedCount, Surroundings
from hpcbench.profiling.capture import ProfiledSamples, capture_by_torch
from hpcbench.profiling.flight import current_collective, flight_record
from hpcbench.profiling.profiled_cases import CLOCK_MARK, SAMPLE_MARK
from hpcbench.profiling.record import fit_anchor
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag


class _Product:
    name = "product"

    def __init__(self) -> None:
        self.left = torch.ones(64, 64)
        self.calls = 0

    def prepare(self) -> None:
        self.left.fill_(1.0)

    def run(self) -> None:
        self.calls += 1
        self.left @ self.left

    def check(self) -> object | None:
        raise AssertionError("profiled samples are not checked")


@pytest.mark.parametrize(("warmup", "batch"), [(0, 1), (3, 2)])
def test_profiled_samples_stand_in_markers_that_tie_both_clocks(warmup: int, batch: int) -> None:
    progress, work, samples = SharedProgress.create(16), _Product(), 3
    around = Surroundings(lambda: Flag(0), FixedCount(samples), lambda: None, time.perf_counter_ns)
    captured = capture_by_torch(
        work, CpuDevice(), progress, ProfiledSamples(warmup, batch, samples, cuda=False), around)
    rows = progress.rows()
    progress.close()
    timed = rows[rows[:, SAMPLE_COLUMNS.index("flags")] == 0]
    assert len(timed) == samples
    assert work.calls == batch * len(rows)
    events = [event for event in captured.trace["traceEvents"] if event["ph"] == "X"]
    assert sum(event["name"] == "aten::mm" for event in events) == batch * samples

    def began_ns(name: str) -> list[int]:
        base_ns = captured.trace["baseTimeNanoseconds"]
        return sorted(base_ns + round(event["ts"] * 1000) for event in events
                      if event["name"].startswith(name))

    anchor = fit_anchor(captured.anchors, began_ns(CLOCK_MARK))
    marks_ns = [int(at) for at in anchor.to_local(torch.tensor(began_ns(SAMPLE_MARK)).numpy())]
    for (start_ns, end_ns, *_), mark_ns in zip(timed.tolist(), marks_ns, strict=True):
        assert start_ns - 3 * anchor.bound_ns - 100 <= mark_ns <= end_ns + 3 * anchor.bound_ns


def test_torchs_flight_recorder_knows_the_collectives_of_gloo() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(256))
        dist.barrier()
        record = flight_record()
    finally:
        dist.destroy_process_group()
    names = [entry["profiling_name"] for entry in record["entries"]]
    assert names[-2:] == ["gloo:all_reduce", "gloo:barrier"]
    assert "barrier" in current_collective(record)


def test_the_recorder_of_nccl_is_read_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"process_group": ["1", "undefined"], "profiling_name": "nccl:all_gather", "pg_id": 0,
             "time_created_ns": 2**62, "collective_seq_id": 7, "retired": False, "state": "started"}
    written = json.dumps({"entries": [entry], "pg_status": {}, "version": "2.10"}).encode()
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", lambda: written,
                        raising=False)
    assert current_collective(flight_record()) == "in all_gather #7 of group 1"
