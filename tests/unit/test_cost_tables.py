"""Exports for inductor and aiconfigurator, read as these programs read them.

inductor's is read by torch's own reader; the others are written from the rules of those programs.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from golden import RESULTS
from hpcbench.errors import UsageError
from hpcbench.interop.formats.export.cases import (
    ExportedRun,
    ExportRequest,
    exported_run,
)
from hpcbench.interop.formats.export.cost_tables import as_aiconfigurator, as_torch_estimates
from hpcbench.interop.formats.export.nccl_tests import as_text
from hpcbench.interop.formats.export.write import FORMATS, export_files
from hpcbench.kinds.collective.plan import Collective
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import ResultsFile
from hpcbench.reduce.topology import RankPlace, Topology
from results_factory import make_case, make_results, make_workload, not_ok, ok

BUSBW = {"all_reduce": lambda n: 2 * (n - 1) / n, "send_recv": lambda n: 1.0,
         **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), lambda n: (n - 1) / n)}
SIZES = (4096, 2**20, 2**28)
REQUEST = ExportRequest()


def times_us(collective: str, size: int, n: int = 4) -> float:
    """20 us, and 100 GB/s of bus bandwidth, of all_gather 50 GB/s."""
    rate = 50e9 if collective == "all_gather" else 100e9
    return 20 + size * BUSBW[collective](n) / rate * 1e6


def cases_of(
    collectives: Sequence[str] = ("all_reduce",), sizes: Sequence[int] = SIZES, n: int = 4,
    dtype: str = "fp16", groups: int = 1, **changes: Any,
) -> Iterator[CaseResult]:
    for at, (name, size) in enumerate((name, size) for name in collectives for size in sizes):
        work = replace(make_workload(name, size, dtype, n), groups=groups)
        case = make_case(work, index=at, **{"backend": "nccl", "device": "cuda",
                                            "world_size": n * groups, **changes})
        yield ok(case, times_us(name, size, n) / 1e6)


def run_of(items: Sequence[CaseResult], nodes: int = 1) -> ExportedRun:
    """The run as `exported_run` has it of a file."""
    ranks = max(item.case.world_size for item in items)
    results = replace(make_results(tuple(items), versions={"nccl": "2.27.5"}, environment={
        "gpu": {"name": "NVIDIA H100, 80GB"}, "hardware": {"memory_per_device_gb": 85.9}}),
        topology=Topology(tuple(RankPlace(rank, f"host{rank * nodes // ranks}", *(None,) * 6)
                                for rank in range(ranks))))

    class Source:
        def __init__(self) -> None:
            self.results = results

        def clock_models(self) -> Mapping[int, Sequence[Any]]:
            return {}

    return exported_run(cast(ResultsFile, Source()))


def bad(status: str, **changes: Any) -> CaseResult:
    (item,) = cases_of(sizes=(2**22,), **changes)
    return not_ok(replace(item.case, case_id=f"bad-{status}"), status, "why")


def test_a_rate_is_least_where_the_time_is_most() -> None:
    """Times have intervals from 1 % below to 2 % above."""
    _, *rates = run_of([*cases_of(sizes=(4096,))]).measured[0].metrics
    assert {one.name for one in rates} == {"algbw", "busbw"}
    assert all((one.low, one.high) == pytest.approx((one.value / 1.02, one.value / 0.99))
               for one in rates)


@pytest.mark.parametrize(("sizes", "step"), [
    ((4096, 8192, 16384), "2(factor)"), ((4096, 6144, 8192), "2048(bytes)"),
    ((4096, 6144, 16384), "0(bytes)")])
def test_the_step_of_a_table_of_nccl_tests(sizes: tuple[int, ...], step: str) -> None:
    assert f"step: {step} ".encode() in as_text([run_of([*cases_of(sizes=sizes)])], REQUEST).content


# inductor


def torch_reader(run: ExportedRun, folder: Path) -> Any:
    pytest.importorskip("torch")
    module = pytest.importorskip("torch._inductor.fx_passes.profile_guided_estimation")
    path = folder / "estimates.json"
    path.write_bytes(as_torch_estimates([run], REQUEST).content)
    profile = module.ProfileData()
    profile.load(str(path))
    return profile


@pytest.mark.parametrize(("collective", "asked"), [
    ("all_reduce", "all_reduce"), ("all_gather", "all_gather_into_tensor"),
    ("reduce_scatter", "reduce_scatter_tensor"), ("all_to_all", "all_to_all_single")])
def test_torch_finds_each_size_by_its_output(collective: str, asked: str, tmp_path: Path) -> None:
    profile = torch_reader(run_of([*cases_of([collective])]), tmp_path)
    for size in SIZES:
        elements = size // 2 // (4 if collective == "reduce_scatter" else 1)
        found = profile.lookup_collective(asked, (0, 1, 2, 3), elements, "Half")
        assert found == (pytest.approx(times_us(collective, size) / 1e3), "profile")
    middle, _ = profile.lookup_collective(asked, (0, 1, 2, 3), elements // 2, "Half")
    assert times_us(collective, SIZES[1]) / 1e3 < middle < times_us(collective, SIZES[2]) / 1e3
    far, source = profile.lookup_collective(asked, (0, 1, 2, 3), elements * 8, "Half")
    assert source == "pg_bandwidth" and far == pytest.approx(
        8 * times_us(collective, SIZES[2]) / 1e3)
    assert profile.lookup_collective(asked, (0, 1, 2, 3), elements, "Float") is None


@pytest.mark.parametrize(("dtype", "name"), [
    ("fp32", "Float"), ("fp64", "Double"), ("fp16", "Half"), ("bf16", "BFloat16"),
    ("int32", "Int"), ("int64", "Long"), ("uint8", "Byte")])
def test_torch_knows_every_type(dtype: str, name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("torch._inductor.fx_passes.profile_guided_estimation")
    types = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16,
             "bf16": torch.bfloat16, "int32": torch.int32, "int64": torch.int64,
             "uint8": torch.uint8}
    assert module._dtype_to_nccl_str(types[dtype]) == name
    profile = torch_reader(run_of([*cases_of(dtype=dtype)]), tmp_path)
    assert profile.get_collective_keys() == [("all_reduce", (0, 1, 2, 3), name)]


def test_torch_has_each_group_of_ranks(tmp_path: Path) -> None:
    profile = torch_reader(run_of([*cases_of(groups=2, n=2)]), tmp_path)
    assert {ranks for _, ranks, _ in profile.get_collective_keys()} == {(0, 1), (2, 3)}
    assert len(profile.collectives) == 2 * len(SIZES)


def test_torch_reads_what_a_real_run_was_exported_to(tmp_path: Path) -> None:
    module = pytest.importorskip("torch._inductor.fx_passes.profile_guided_estimation")
    exported, lines = export_files([RESULTS["collective"]], "torch-estimates", REQUEST,
                                   ["* gloo * n=2"])
    (tmp_path / "trace.json").write_bytes(exported.content)
    profile = module.ProfileData()
    profile.load(str(tmp_path / "trace.json"))
    assert {name for name, _, _ in profile.get_collective_keys()} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    assert {entry.duration_us > 0 for entry in profile.collectives} == {True}
    assert any("profile_guided_estimations_profile_path" in line for line in lines)
    assert any("inductor has no broadcast" in line for line in lines)


def test_events_do_not_overlap_and_are_marked_as_ours() -> None:
    document = json.loads(as_torch_estimates([run_of([*cases_of()])], REQUEST).content)
    events = document["traceEvents"]
    assert document["otherData"]["program"] == "hpcbench"
    for before, after in zip(events, events[1:], strict=False):
        assert before["ts"] + before["dur"] < after["ts"]
    assert all(event["cat"] == "kernel" and event["name"].startswith("hpcbench ")
               for event in events)


# aiconfigurator


def perf_table(text: str) -> dict[tuple[str, str, int, int], float]:
    """Return latencies in ms as its loader does: a repeated key would replace the one before."""
    found: dict[tuple[str, str, int, int], float] = {}
    for row in csv.DictReader(io.StringIO(text)):
        assert None not in row and row["op_name"] in (
            "all_gather", "alltoall", "reduce_scatter", "all_reduce")
        key = (row["nccl_dtype"], row["op_name"], int(row["num_gpus"]), int(row["message_size"]))
        assert key not in found and key[0] in ("half", "int8")
        assert re.fullmatch(r"\d+\.\d+", row["latency"])
        found[key] = float(row["latency"])
    return found


def test_aiconfigurator_has_elements_and_milliseconds() -> None:
    names = {"all_reduce": "all_reduce", "all_gather": "all_gather",
             "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall"}
    run = run_of([*cases_of([*names])])
    exported = as_aiconfigurator([run], REQUEST)
    found = perf_table(exported.content.decode())
    assert found == {("half", theirs, 4, size // 2): pytest.approx(
        times_us(ours, size) / 1e3, rel=1e-5) for ours, theirs in names.items() for size in SIZES}
    assert b'"NVIDIA H100, 80GB"' in exported.content and b",2.27.5," in exported.content


def test_aiconfigurator_takes_nccl_and_its_two_types_only() -> None:
    bytes_ = as_aiconfigurator([run_of([*cases_of(dtype="uint8")])], REQUEST)
    assert {key[0] for key in perf_table(bytes_.content.decode())} == {"int8"}
    assert any("uint8" in note for note in bytes_.notes)
    for changes, reason in ((dict(dtype="bf16"), "aiconfigurator has no bf16"),
                            (dict(backend="gloo", device="cpu"), "gloo is not NCCL"),
                            (dict(groups=2), "groups of ranks"),
                            (dict(collectives=("send_recv",)), "aiconfigurator has no send_recv")):
        exported = as_aiconfigurator([run_of([*cases_of(**cast(Any, changes))])], REQUEST)
        assert exported.content == b"" and {one.reason for one in exported.left_out} == {reason}


# all of them

OURS = {"torch-estimates": as_torch_estimates, "aiconfigurator": as_aiconfigurator}


@pytest.mark.parametrize("to", OURS)
@pytest.mark.parametrize("status", ["wrong", "failed", "timeout", "skipped", "not_run"])
def test_what_went_wrong_is_named_and_has_no_number(to: str, status: str) -> None:
    good = OURS[to]([run_of([*cases_of()])], REQUEST)
    exported = OURS[to]([run_of([*cases_of(), bad(status)])], REQUEST)
    assert exported.content == good.content
    assert len(exported.left_out) == len(good.left_out) + 1
    assert OURS[to]([run_of([bad(status)])], REQUEST).content == b""


@pytest.mark.parametrize("to", OURS)
@pytest.mark.parametrize("changes", [
    {"env": (("NCCL_ALGO", "Ring"),)}, {"mode": "barrier_start"}, {"cuda_graph": True}], ids=str)
def test_ways_that_a_table_cannot_distinguish_are_refused(
    to: str, changes: dict[str, Any],
) -> None:
    other = [replace(item, case=replace(item.case, case_id=f"x{item.case.case_id}"))
             for item in cases_of(**changes)]
    with pytest.raises(UsageError, match="--only "):
        OURS[to]([run_of([*cases_of(), *other])], REQUEST)


@pytest.mark.parametrize("to", OURS)
def test_a_curve_is_of_one_form(to: str) -> None:
    first, *rest = cases_of()
    gap = bad("failed")
    moved = [replace(item, case=replace(
        item.case, case_id=f"x{item.case.case_id}", workload=replace(
            cast(Collective, item.case.workload), in_place=True))) for item in (first, *rest)]
    exported = OURS[to]([run_of([first, gap, *rest, *moved])], REQUEST)
    assert sum(one.reason.startswith("another form") for one in exported.left_out) == len(SIZES)
    assert exported.content == OURS[to]([run_of([*cases_of()])], REQUEST).content


@pytest.mark.parametrize("to", OURS)
def test_splits_and_single_ranks_are_left_out(to: str) -> None:
    cases = [*cases_of()]
    split = replace(cases[0].case, case_id="split", workload=replace(
        cast(Collective, cases[0].case.workload), split="linear"))
    (alone,) = cases_of(sizes=(64,), n=1)
    exported = OURS[to]([run_of([*cases, ok(split), ok(replace(alone.case, case_id="one"))])],
                        REQUEST)
    assert {one.reason for one in exported.left_out} == {
        "parts of different sizes (split)", "a single rank"}


@pytest.mark.parametrize("to", OURS)
def test_a_training_has_nothing_for_them(to: str) -> None:
    assert to in FORMATS
    with pytest.raises(UsageError, match="no collective"):
        export_files([RESULTS["training"]], to, REQUEST)
