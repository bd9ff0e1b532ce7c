from __future__ import annotations

import json
import re
import shlex
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.config.axes import (
    BACKENDS,
    BITWISE,
    BUFFERS,
    COMPLEX_DTYPES,
    DEVICES,
    DTYPES,
    FLOATING_DTYPES,
    OPS,
    SPLITS,
    UNEVEN,
)
from hpcbench.config.load import PACKAGED, check_config, load_config
from hpcbench.dry_run import dry_run
from hpcbench.errors import ConfigError
from hpcbench.operations.collectives import collectives
from hpcbench.plan.case import Case, Plan, plan_from_json, plan_to_json
from hpcbench.plan.choice import fitting, only_flags
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import generations


def plan_of(*blocks: dict[str, Any], ranks: int = 4, **top: Any) -> Plan:
    whole = [{"kind": "collective", "collective": "all_reduce"} | block for block in blocks]
    return make_plan(check_config({"benchmarks": whole} | top, "c.json"), ranks)


def only_case(*blocks: dict[str, Any], ranks: int = 4, **top: Any) -> Case:
    (case,) = plan_of(*blocks, ranks=ranks, **top).cases
    return case


def test_the_last_axis_is_the_fastest() -> None:
    plan = plan_of({"dtype": ["fp32", "fp64"], "op": ["sum", "max"], "size": [8, 16]})
    seen = [(c.workload.dtype, c.workload.op, c.workload.size_bytes) for c in plan.cases]
    assert seen == [(d, o, s) for d in ("fp32", "fp64") for o in ("sum", "max") for s in (8, 16)]
    assert [case.index for case in plan.cases] == list(range(8))


def test_cases_that_differ_in_what_labels_leave_out_are_told_apart_and_found_by_it() -> None:
    """Also where --only leaves one of them."""
    axes = {"size": [8], "backend": ["gloo"], "validate": [False, True], "iterations": [8, 12]}
    labels = [case.label for case in plan_of(axes).cases]
    assert len({*labels}) == 4
    assert all(words in labels[-1] for words in ("validate=true", "iterations=12"))
    (case,) = plan_of(axes, only=["validate=false iterations=12"]).cases
    assert (case.validate, case.iterations) == (False, 12) and case.label in labels
    (alone,) = plan_of({**axes, "validate": True, "iterations": 8}).cases
    assert not alone.marks and labels[2].startswith(f"{alone.label} ")


def test_options_a_collective_does_not_have_are_dropped_and_equal_points_planned_once() -> None:
    plan = plan_of({"collective": ["broadcast", "barrier"], "op": ["sum", "max"],
                    "root": [0, 1], "size": [8, 16]})
    works = [case.workload for case in plan.cases]
    assert [(w.collective, w.root, w.size_bytes) for w in works] == [
        ("broadcast", 0, 8), ("broadcast", 0, 16), ("broadcast", 1, 8), ("broadcast", 1, 16),
        ("barrier", None, 0)]
    assert {w.op for w in works} == {None}
    assert [w.in_place for w in works] == [True] * 4 + [None]
    assert plan.duplicates == 16 - 5
    assert not plan.cases[-1].validate


def test_auto_is_the_same_case_as_the_device_it_stands_for() -> None:
    plan = plan_of({"device": ["auto", "cpu"]})
    assert [case.device for case in plan.cases] == ["cpu"]
    assert plan.duplicates == 1
    assert only_case({"backend": "nccl"}).device == "cuda"
    assert only_case({"backend": "ucc"}).device == "auto"


@pytest.mark.parametrize(("block", "reason"), [
    ({"world_size": 8}, "world_size 8 is more than the job's 4 ranks"),
    ({"collective": "broadcast", "root": 2, "world_size": 2}, "root 2 is not one of 2 ranks"),
    ({"collective": "all_gather", "size": 60}, "rounded to nothing"),
    ({"size": 0}, "rounded to nothing"),
    ({"collective": "all_to_all", "in_place": True}, "all_to_all has no in-place form"),
    ({"collective": "send_recv", "in_place": True}, "send_recv has no in-place form"),
    ({"collective": "all_reduce", "in_place": False}, "all_reduce has no out-of-place form"),
    ({"collective": "broadcast", "in_place": False}, "broadcast has no out-of-place form"),
    ({"collective": "send_recv", "world_size": 1}, "send_recv needs at least 2 ranks"),
    ({"collective": "reduce", "in_place": False}, "reduce has no out-of-place form"),
    ({"collective": "gather", "in_place": True}, "gather has no in-place form"),
    ({"collective": "reduce", "op": "avg", "dtype": "int64"}, "gloo averages floating"),
    ({"collective": "gather", "root": 3, "world_size": 3}, "root 3 is not one of 3 ranks"),
    ({"collective": "all_gather", "uneven": "linear"}, "gloo has no uneven all_gather: Process"),
    ({"backend": "ucc", "collective": "all_gather", "uneven": "empty"}, "as long as the rank"),
    ({"backend": "ucc/tl/ucp", "collective": "reduce_scatter", "uneven": "empty"}, "as the first"),
    ({"collective": "reduce_scatter", "uneven": "empty", "in_place": True}, "has no in-place form"),
    ({"collective": "all_to_all", "uneven": "empty", "world_size": 1}, "needs at least 2 ranks"),
    ({"collective": "all_to_all", "uneven": "linear", "size": 255}, "4 ranks begins at 256 B"),
    ({"groups": 3}, "4 ranks cannot be divided into 3 equal groups"),
    ({"groups": 8}, "4 ranks cannot be divided into 8 equal groups"),
    ({"collective": "send_recv", "groups": 4}, "needs at least 2 ranks in a group"),
    ({"collective": "broadcast", "groups": 2, "root": 2}, "root 2 is not one of 2 ranks in a"),
    ({"op": "avg", "dtype": "int32"}, "gloo averages floating dtypes only, not int32"),
    ({"op": "avg", "dtype": "uint8", "backend": "mpi"}, "mpi averages floating dtypes only"),
    ({"op": "avg", "dtype": "int64", "backend": "ucc"}, "ucc averages floating dtypes only"),
    ({"backend": "nccl", "device": "cpu"}, "nccl does not run on cpu, only on cuda"),
    ({"backend": "gloo", "device": "mps"}, "mps has no collective backend"),
    ({"backend": "gloo", "device": "cuda", "collective": "send_recv"}, "gloo has no send_recv on"),
    ({"backend": "gloo", "device": "cuda", "collective": "barrier"}, "gloo has no barrier on cuda"),
    ({"backend": "ucc/tl/nccl", "env": {"UCC_CL_BASIC_TLS": "ucp"}}, "contradicts ucc/tl/nccl"),
    *(({"backend": backend, "env": {"NCCL_ALGO": "Ring", name: "x"}}, f"env {name}: {backend} runs")
      for backend in ("mpi", "mpi/direct")
      for name in ("UCX_TLS", "FI_PROVIDER", "I_MPI_FABRICS", "MPIR_CVAR_NOLOCAL", "A")),
    ({"backend": "ucc/tl/cuda", "collective": "barrier"}, "ucc/tl/cuda has no barrier on cuda"),
    ({"backend": "ucc/tl/cuda", "collective": "reduce"}, "ucc/tl/cuda has no reduce on cuda"),
    ({"backend": "ucc/tl/cuda", "collective": "gather"}, "ucc/tl/cuda has no gather on cuda"),
    ({"backend": "ucc/tl/cuda", "collective": "scatter"}, "ucc/tl/cuda has no scatter on cuda"),
    ({"backend": "ucc/tl/ucp", "world_size": 1}, "ucc/tl/ucp makes no group of 1 rank"),
    ({"backend": "ucc/tl/cuda", "device": "cpu"}, "ucc/tl/cuda does not run on cpu"),
    ({"backend": "mpi", "device": "mps"}, "mps has no collective backend"),
    ({"backend": "mpi", "collective": "reduce_scatter", "in_place": True},
     "mpi has no in-place reduce_scatter"),
    ({"backend": "mpi/direct", "device": "cuda"}, "mpi/direct does not run on cuda, only on cpu"),
    ({"backend": "mpi/direct", "op": "avg"}, "mpi/direct has no avg: MPI has no reduction that"),
    ({"backend": "mpi/direct", "collective": "all_gather", "uneven": "linear"},
     "mpi/direct has no uneven all_gather: it calls MPI's forms for equal parts"),
    ({"backend": "mpi/direct", "collective": "reduce_scatter", "in_place": True},
     "mpi/direct has no in-place reduce_scatter"),
    ({"cache": "cold", "size": "64KiB"}, "65536 B would need 2048 sets of buffers; it begins at"),
    ({"cache": "cold", "size": "1MiB", "backend": "nccl", "cuda_graph": True, "device": "cuda"},
     "a CUDA graph repeats the call of one set of buffers"),
    ({"backend": "mpi", "in_place": False}, "all_reduce has no out-of-place form"),
    ({"backend": "mpi/direct", "collective": "reduce", "in_place": False},
     "reduce has no out-of-place form"),
])
def test_what_can_run_nowhere_is_a_skip_with_its_reason(block: dict[str, Any], reason: str) -> None:
    case = only_case(block)
    assert case.skip is not None and reason in case.skip
    assert case.needs == () and case.estimate_s == 0.0


@pytest.mark.parametrize(("backend", "device", "needs"), [
    ("gloo", "auto", ()), ("gloo", "cuda", ("cuda",)), ("nccl", "auto", ("nccl", "cuda")),
    ("ucc", "auto", ("ucc",)), ("ucc", "cpu", ("ucc",)), ("ucc/tl/nccl", "auto", ("ucc", "cuda")),
    ("mpi", "auto", ("mpi",)), ("mpi", "cuda", ("mpi", "cuda")), ("mpi/direct", "auto", ("mpi",)),
])
def test_what_only_the_machine_can_show_is_a_need(
    backend: str, device: str, needs: tuple[str, ...]
) -> None:
    case = only_case({"backend": backend, "device": device})
    assert case.skip is None and case.needs == needs and case.estimate_s > 0


def test_every_collective_dtype_and_op_runs_on_gloo() -> None:
    plan = plan_of({"collective": list(collectives()), "dtype": list(DTYPES), "op": list(OPS)})
    skips = {(c.workload.collective if c.workload.op is None else c.workload.op,
              c.workload.dtype) for c in plan.cases if c.skip}
    whole = ("int32", "int64", "uint8", "int8", "bool")
    assert skips == {
        *(("avg", dtype) for dtype in whole), *(("gather", dtype) for dtype in COMPLEX_DTYPES),
        *((op, dtype) for op in OPS for dtype in COMPLEX_DTYPES if op not in ("sum", "avg")),
        *((op, dtype) for op in BITWISE for dtype in FLOATING_DTYPES)}


def test_nccl_averages_integers_too_and_has_no_bitwise_reduction() -> None:
    plan = plan_of({"backend": "nccl", "dtype": list(DTYPES), "op": ["avg", "bor"]})
    assert {(case.workload.op, case.workload.dtype) for case in plan.cases if not case.skip} == {
        ("avg", dtype) for dtype in DTYPES if dtype != "bool"}


@pytest.mark.parametrize("backend", ["ucc", "ucc/tl/ucp"])
def test_types_that_were_tried_on_gloo_and_mpi_alone_are_a_skip_elsewhere(backend: str) -> None:
    plan = plan_of({"backend": backend, "dtype": ["int8", "bool", "complex64", "uint8"]})
    assert [case.workload.dtype for case in plan.cases if not case.skip] == ["uint8"]


def test_splits_are_dropped_where_parts_cannot_differ_and_even_is_the_plain_case() -> None:
    plan = plan_of({"collective": ["all_reduce", "gather", "all_to_all"], "uneven": list(UNEVEN)})
    assert [(c.workload.collective, c.workload.split) for c in plan.cases] == [
        ("all_reduce", "even"), ("gather", "even"), *(("all_to_all", name) for name in SPLITS)]
    assert plan.cases[0].case_id == only_case({}).case_id
    assert plan.cases[-1].label == "all_to_all gloo cpu fp32 1048576B split=zero n=4"


def test_groups_divide_the_world_and_sizes_are_of_one_group() -> None:
    one, two = plan_of({"collective": "all_gather", "groups": [1, 2], "size": "1KiB"}).cases
    assert (one.workload.count, two.workload.count) == (64, 128)
    assert (one.group_size, two.group_size) == (4, 2)
    assert two.label == "all_gather gloo cpu fp32 1024B n=4 groups=2"
    assert two.memory_bytes == 512 + 2 * 1024
    assert one.case_id == only_case({"collective": "all_gather", "size": "1KiB"}).case_id


def groups_at(ranks: int, groups: object) -> tuple[str, ...]:
    """Return the ranks of each group of a case, as text."""
    (case,) = plan_of({"groups": groups}, ranks=ranks).cases
    assert case.skip is None
    return tuple(" ".join(map(str, group)) for group in case.group_ranks)


@pytest.mark.parametrize(("groups", "ranks", "expected"), [
    (2, 4, ("0 1", "2 3")),
    ({"count": 2}, 4, ("0 1", "2 3")),
    ({"size": 2}, 6, ("0 1", "2 3", "4 5")),  # nccl-tests' DIV 2
    ({"stride": 2}, 6, ("0 2 4", "1 3 5")),  # MOD 2
    ({"count": 2, "stride": 2}, 6, ("0 2 4", "1 3 5")),
    ({"size": 2, "stride": 2}, 8, ("0 2", "1 3", "4 6", "5 7")),
    ({"count": 4, "stride": 2}, 8, ("0 2", "1 3", "4 6", "5 7")),
    ({"stride": 4}, 4, ("0", "1", "2", "3")),
    ({"stride": 1}, 3, ("0 1 2",)),
])
def test_groups_by_size_and_stride(groups: object, ranks: int, expected: tuple[str, ...]) -> None:
    assert groups_at(ranks, groups) == expected


def test_the_same_groups_are_one_case_however_they_are_asked_for() -> None:
    plan = plan_of({"groups": [2, {"count": 2}, {"size": 2}, {"stride": 2},
                               {"size": 2, "stride": 2}, {"count": 2, "stride": 2}]})
    assert [case.label.partition(" n=")[2] for case in plan.cases] == [
        "4 groups=2", "4 groups=2 stride=2"]
    assert plan.duplicates == 4
    one, two = plan.cases
    assert one.case_id == only_case({"groups": 2}).case_id != two.case_id
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_a_rail_is_estimated_with_the_network_and_a_node_without() -> None:
    hardware = {"network_bandwidth_gbps": 1, "num_devices": 4, "device_type": "cuda"}
    block = {"groups": [{"size": 4}, {"stride": 4}], "backend": "nccl", "size": "1GiB"}
    node, rail = plan_of(block, ranks=16, hardware=hardware).cases
    assert rail.group_size == node.group_size == 4 and rail.estimate_s > 10 * node.estimate_s


def test_groups_that_no_world_can_be_divided_into_are_skips_of_their_own() -> None:
    plan = plan_of({"groups": [{"size": 4}, {"size": 3}, {"size": 8}, {"size": 4, "stride": 4}, 1]})
    assert [case.skip for case in plan.cases] == [
        None, "4 ranks cannot be divided into groups of 3 ranks",
        "4 ranks cannot be divided into groups of 8 ranks",
        "4 ranks cannot be divided into groups of 4 ranks that are 4 apart"]
    assert len({case.case_id for case in plan.cases}) == 4


@pytest.mark.parametrize("groups", [
    {}, {"size": 2, "count": 2}, {"size": 0}, {"stride": True}, {"count": 3, "stride": 2},
    {"strides": 2}, "2", 0, [], {"size": "2"}, 2.0])
def test_groups_that_specify_nothing_clear_are_refused(groups: object) -> None:
    with pytest.raises(ConfigError, match="groups"):
        plan_of({"groups": groups})


@pytest.mark.parametrize("name", ["NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"])
def test_what_only_nccl_tests_reads_is_refused_with_the_key_that_does_it(name: str) -> None:
    with pytest.raises(ConfigError, match='MOD 8 is {"stride": 8}'):
        plan_of({"env": {name: "MOD 8"}})


def test_cold_buffers_are_a_case_of_their_own_with_the_memory_of_all_sets() -> None:
    block = {"collective": ["all_reduce", "barrier"], "cache": ["warm", "cold"], "size": "16MiB"}
    warm, cold, barrier = plan_of(block).cases
    assert warm.case_id == only_case({"size": "16MiB"}).case_id
    assert cold.label == warm.label + " buffers=cold" and cold.case_id != warm.case_id
    assert cold.memory_bytes == 8 * warm.memory_bytes and cold.skip is None
    assert barrier.workload.choice().axes["buffers"] == "warm"


def test_a_ucc_layer_is_chosen_by_the_environment_of_its_workers() -> None:
    case = only_case({"backend": "ucc/tl/ucp", "env": {"UCX_TLS": "tcp"}})
    assert dict(case.env) == {"UCC_CLS": "basic", "UCC_CL_BASIC_TLS": "ucp", "UCX_TLS": "tcp"}


def test_memory_is_checked_on_the_device_it_is_given_for() -> None:
    big = {"size": "1GiB", "backend": ["gloo", "nccl"]}
    hardware = {"memory_per_device_gb": 3.0, "device_type": "cuda"}
    gloo, nccl = plan_of(big, hardware=hardware).cases
    assert gloo.skip is None
    assert nccl.skip is not None and "hardware.memory_per_device_gb 3" in nccl.skip
    assert nccl.memory_bytes == 3 * 2**30
    assert plan_of(big, hardware={"memory_per_device_gb": 3.3}).cases[1].skip is None


def test_cases_are_grouped_so_that_workers_restart_least_often() -> None:
    plan = plan_of({"backend": ["mpi", "gloo", "nccl"], "world_size": [1, 4], "size": [8, 16],
                    "env": {"NCCL_A": ["x", "y"]}})
    seen = [(c.env[0][1], c.world_size, c.backend) for c in plan.cases]
    isolated = [(a, k, b) for a in "xy" for k in (4, 1) for b in ("gloo", "nccl") for _ in (0, 1)]
    assert seen[:16] == isolated
    assert {backend for _, _, backend in seen[16:]} == {"mpi"}
    workers = [(g.inline, dict(g.env)["NCCL_A"], g.world_size) for g in generations(plan.cases)]
    assert workers == [(inline, a, k) for inline in (False, True) for a in "xy" for k in (4, 1)]


def test_generations_hold_every_runnable_case_once_and_in_order() -> None:
    plan = make_plan(load_config(PACKAGED), 4)
    runnable = [case for case in plan.cases if case.skip is None]
    assert [case for group in generations(plan.cases) for case in group.cases] == runnable
    assert [group.world_size for group in generations(plan.cases)] == [4, 2, 1, 4]  # mpi last


def test_two_wakeup_intervals_are_two_cases_side_by_side() -> None:
    plan = plan_of({"poll_interval_s": [0.2, 0.02], "size": [8, 16]})
    assert [(c.workload.size_bytes, c.wakeup_s) for c in plan.cases] == [
        (8, 0.2), (8, 0.02), (16, 0.2), (16, 0.02)]
    plain = plan_of({"size": 8})
    assert plan.cases[0].case_id == plain.cases[0].case_id
    assert plan.cases[1].case_id != plain.cases[0].case_id


def test_limits_and_names_are_not_part_of_an_id() -> None:
    one = only_case({"name": "a", "timeout_s": 5}, name="x", launch={"poll_interval_s": 0.5})
    two = only_case({"name": "b"}, name="y")
    assert one.case_id == two.case_id
    assert (one.timeout_s, two.timeout_s) == (5, 60)
    assert (one.block, two.block, only_case({}).block) == ("a", "b", "collective-1")


def test_the_plan_hash_depends_on_what_is_measured_only() -> None:
    one = plan_of({"name": "a"}, name="x", output={"folder": "elsewhere"})
    assert one.plan_hash == plan_of({"name": "b"}, name="y").plan_hash
    others = [plan_of({"size": 8}), plan_of({}, measure={"passes": 2}), plan_of({}, ranks=2)]
    assert len({one.plan_hash, *(other.plan_hash for other in others)}) == 4


BROADCASTS = {"collective": ["all_reduce", "broadcast"], "size": ["8", "1KiB"]}


@pytest.mark.parametrize(("filters", "kept"), [
    ({"only": "*broadcast* 1024B*"}, ["broadcast 1024B"]),
    ({"only": "broadcast"}, ["broadcast 1024B", "broadcast 8B"]),
    ({"only": ["1024B", "cpu fp32 8B"]}, ["all_reduce 1024B", "broadcast 1024B", "broadcast 8B"]),
    ({"only": "broadcast 1KiB"}, ["broadcast 1024B"]),
    ({"only": "all_reduce n=4"}, ["all_reduce 1024B", "all_reduce 8B"]),
    ({"exclude": "all_reduce"}, ["broadcast 1024B", "broadcast 8B"]),
    ({"exclude": ["all_*", "* 8B*"]}, ["broadcast 1024B"]),
    ({"only": "8B", "exclude": "broadcast"}, ["all_reduce 8B"]),
    ({"exclude": ["reduce", "4B", "B", "n", "n=", "cast", "all_reduce gloo cpu fp32 sum 8"]},
     ["all_reduce 1024B", "all_reduce 8B", "broadcast 1024B", "broadcast 8B"]),
])
def test_filters_take_whole_words_of_a_label_or_a_pattern(
    filters: dict[str, Any], kept: list[str],
) -> None:
    labels = [case.label.split() for case in plan_of(BROADCASTS, **filters).cases]
    assert sorted(f"{words[0]} {words[-2]}" for words in labels) == kept


def test_a_filter_takes_no_value_of_a_key_and_both_lanes_of_a_backend() -> None:
    training = {"kind": "training", "model": "transformer-tiny", "batch_size": 4,
                "strategies": {"fsdp": {}, "hybrid": {"tp": 2, "data": "fsdp"}}}
    config = {"benchmarks": [
        training, {"kind": "collective", "collective": "all_reduce", "size": 8,
                   "backend": ["mpi", "mpi/direct"]}]}

    def kept(text: str) -> list[str]:
        plan = make_plan(check_config({**config, "only": text}, "c.json"), 4)
        return sorted({" ".join(case.label.split()[:2]) for case in plan.cases})

    assert kept("fsdp") == ["transformer-tiny fsdp"]
    assert kept("data=fsdp") == ["transformer-tiny hybrid"]
    assert kept("mpi") == ["all_reduce mpi", "all_reduce mpi/direct"]
    assert kept("mpi/direct") == ["all_reduce mpi/direct"]


def test_filters_that_leave_nothing_state_what_a_label_is() -> None:
    with pytest.raises(ConfigError, match='only: "scatter" matches none of 4 cases') as caught:
        plan_of(BROADCASTS, only="scatter")
    assert '"all_reduce" of "all_reduce gloo cpu fp32 sum 8B n=4"' in str(caught.value)
    (pattern,) = re.findall('such as "([^"]*)"$', str(caught.value))
    assert plan_of(BROADCASTS, only=pattern).cases
    with pytest.raises(ConfigError, match='exclude: "gloo" leaves none of 4 cases'):
        plan_of(BROADCASTS, exclude="gloo")


def test_benchmark_chooses_blocks_by_kind() -> None:
    assert len(plan_of({}, benchmark="comm").cases) == 1


@pytest.mark.parametrize(("ranks", "sizes"), [
    (1, {1}), (2, {1, 2}), (6, {1, 2, 4, 6}), (8, {1, 2, 4, 8})])
def test_scaling_runs_what_scales_on_powers_of_two_and_on_all_ranks(
    ranks: int, sizes: set[int],
) -> None:
    config = check_config({"benchmark": "scaling", "benchmarks": [
        {"kind": "collective", "collective": "barrier", "world_size": 3},
        {"kind": "training", "model": "transformer-tiny", "strategies": ["single", "data"],
         "batch_size": 8},
        {"kind": "primitive", "primitive": "tp_columnwise", "implementations": ["torch"],
         "m": 128, "n": 128, "k": 128}]}, "test")
    cases = make_plan(config, ranks).cases
    assert {case.kind for case in cases} == {"collective", "training"}
    for kind in ("collective", "training"):
        assert {case.world_size for case in cases if case.kind == kind} == sizes


def test_scaling_of_nothing_that_scales_is_refused() -> None:
    config = check_config({"benchmark": "scaling", "benchmarks": [
        {"kind": "hardware", "test": "gemm", "shape": "512"}]}, "test")
    with pytest.raises(ConfigError, match="scaling runs collectives and trainings.*hardware"):
        make_plan(config, 4)


def test_a_million_points_are_refused_with_their_number_and_axes() -> None:
    block = {"root": list(range(1000)), "size": {"from": 8, "to": 8000, "step": 8}}
    with pytest.raises(ConfigError, match="validate 2 x size 1000"):
        plan_of({**block, "validate": ["every", 3]}, {})
    with pytest.raises(ConfigError) as caught:
        plan_of(block, {})
    assert "1,000,001 points" in str(caught.value)
    assert "root 1000 x size 1000" in str(caught.value)


def test_loads_of_experts_are_splits_of_all_to_all(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("0 64 8\n16 0 8\n8 8 6\n")
    block = {"collective": ["all_to_all", "reduce_scatter"], "size": "1MiB", "world_size": [2, 3],
             "uneven": ["balanced", "zipf:1.50", "max_over_mean:2.5", "matrix"],
             "matrix": str(tmp_path / "table.txt")}
    plan = plan_of(block, ranks=3)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    found = {(case.workload.collective, case.workload.split, case.world_size):
             case for case in plan.cases}
    assert all((case.skip is None) == (
        split == "even" or collective == "all_to_all" and (split, ranks) not in (
            ("max_over_mean:2.5", 2), ("matrix", 3)))
        for (collective, split, ranks), case in found.items())
    table = found["all_to_all", "matrix", 2].workload
    assert (table.size_bytes, table.count, table.busiest_wire_bytes) == (64, 16, 64)
    assert table.received_max_over_mean == 64 / 40
    assert found["all_to_all", "zipf:1.5", 2].workload.received_max_over_mean > 1.2
    for change in ({"matrix": None}, {"uneven": ["none"]}, {"uneven": ["zipf"]},
                   {"uneven": ["max_over_mean:0.5"]}, {"uneven": [1.5]}):
        with pytest.raises(ConfigError):
            plan_of({key: value for key, value in {**block, **change}.items()
                     if value is not None}, {})


def test_a_plan_survives_json() -> None:
    plan = make_plan(load_config(PACKAGED), 4)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


AXES = {
    "collective": tuple(collectives()), "backend": BACKENDS, "device": DEVICES, "dtype": DTYPES,
    "op": OPS, "in_place": (False, True), "root": (0, 1, 7), "world_size": (1, 2, "all", 9),
    "uneven": tuple(UNEVEN), "groups": (1, 2, {"stride": 2}, {"size": 2, "stride": 2}),
    "cache": BUFFERS, "size": ("8", "1KiB", "100"),
    "warmup": (0, 5), "validate": (True, False, "ends", "every", 1, 5),
}


def blocks(values: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return blocks with up to so many values on each axis."""
    return st.fixed_dictionaries({}, optional={
        name: st.lists(st.sampled_from(every), min_size=1, max_size=values)
        for name, every in AXES.items()})


@settings(max_examples=150, deadline=None)
@given(blocks(2), st.integers(1, 5))
def test_every_point_is_a_case_or_a_duplicate_and_ids_are_unique(
    block: dict[str, Any], ranks: int
) -> None:
    plan = plan_of(block, ranks=ranks)
    product = 1
    for values in block.values():
        product *= len(values)
    assert len(plan.cases) + plan.duplicates == product
    assert len({case.case_id for case in plan.cases}) == len(plan.cases)
    for case in plan.cases:
        assert case.workload.size_bytes <= case.workload.requested_bytes
        assert case.skip is not None or 1 <= case.world_size <= ranks


@settings(max_examples=30, deadline=None)
@given(blocks(2), st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_the_order_of_axes_or_values(
    block: dict[str, Any], random: Any
) -> None:
    shuffled = {name: random.sample(values, len(values)) for name, values in block.items()}
    shuffled = dict(random.sample(sorted(shuffled.items()), len(shuffled)))
    ids = {case.case_id for case in plan_of(block).cases}
    assert {case.case_id for case in plan_of(shuffled).cases} == ids


def test_ids_do_not_depend_on_the_order_of_environment_variables() -> None:
    pairs = [("A", 1), ("B", "x"), ("C", 3)]
    ids = {only_case({"env": dict(order)}).case_id for order in permutations(pairs)}
    assert len(ids) == 1


@pytest.mark.parametrize(("section", "words"), [
    ({"required_backends": ["nccl"]}, "required_backends: no case uses nccl; there are gloo"),
    ({"fault": [{"rank": 7, "kind": "kill"}]}, r"fault\[0\]: no case .* has a rank 7"),
    ({"fault": [{"rank": 0, "kind": "kill", "case": "*nothing*"}]}, "could never happen"),
    ({"fault": [{"rank": 0, "kind": "kill", "iteration": 999}]}, "iteration 999"),
    ({"fault": [{"rank": 0, "kind": "slow_samples"}]}, "samples that can take longer"),
])
def test_what_no_case_can_meet_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_of({"collective": "all_reduce"}, **section)


def test_a_fault_of_cases_that_are_not_chosen_is_left_out_with_a_note() -> None:
    faults = [{"rank": 0, "kind": "kill", "case": f"{one} *"} for one in ("all_gather", "barrier")]
    for choice in ({"only": ["barrier"]}, {"exclude": ["all_gather"]}):
        config = plan_of({"collective": ["all_gather", "barrier"]}, fault=faults, **choice).config
        assert [fault["case"] for fault in config["fault"]] == ["barrier *"]
        (note,) = config["notes"]
        assert "fault[0]" in note and f"{[*choice][0]} left out" in note


BAD = {"benchmarks": [{"kind": "primitive", "primitive": "tp_columnwise", "m": 32, "k": 8, "n": 8,
                       "implementations": ["no_such"]}]}
"""Nobody offers that implementation: only a plan finds it."""
GOOD = ("benchmarks.0.implementations", ["comm_only"])


@pytest.mark.parametrize(("content", "overrides", "where"), [
    (BAD, [], "FILE: benchmarks: "), (BAD, [("benchmarks.0.n", 8)], "FILE: benchmarks: "),
    ({**BAD, "required_backends": ["nccl"]}, [GOOD], "FILE: required_backends: "),
    (BAD, [GOOD, ("required_backends", ["nccl"])], "command line: required_backends: "),
    (BAD, [GOOD, ("only", ["none"])], "command line: only: "),
])
def test_each_line_about_a_plan_names_the_file_whoever_plans(
    tmp_path: Path, content: dict[str, Any], overrides: list[tuple[str, object]], where: str,
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    for planned in (lambda: make_plan(load_config(file, overrides), 4),
                    lambda: dry_run(file, overrides, 4)):
        with pytest.raises(ConfigError) as caught:
            planned()
        lines = str(caught.value).splitlines()
        assert lines and all(line.startswith(where.replace("FILE", str(file))) for line in lines)


def test_a_configuration_is_the_same_wherever_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(BAD), encoding="utf-8")
    assert load_config(file) == check_config(BAD, "elsewhere", ["required_backends"])


def test_scaling_leaves_out_what_memory_trainings_hold() -> None:
    config = check_config({"benchmark": "scaling", "benchmarks": [
        {"kind": "collective", "collective": "broadcast"},
        {"kind": "memory", "model": "transformer-tiny", "batch_size": 1, "strategies": "data"},
    ]}, "x")
    assert {case.kind for case in make_plan(config, 4).cases} == {"collective"}


LABELS = {f"{at:012x}": label for at, label in enumerate((
    *(f"all_reduce nccl cuda fp32 sum {size}B{place} n={n}{mode}" for size in (1024, 16384)
      for place in ("", " out_of_place") for n in (2, 4) for mode in ("", " pipelined")),
    "all_gather nccl cuda fp32 4096B n=2 X=[1]", "all_gather nccl cuda fp32 4096B n=2",
    "reduce nccl cuda fp32 sum 1024B n=2", "reduce nccl cuda fp32 sum 1024B n=2",
    "tp_columnwise/pytorch gloo cpu n=2"))}


@pytest.mark.parametrize("meant", [
    *("all_reduce", "all_reduce pipelined", "out_of_place n=4 pipelined", "n=4", "X=[1]"),
    *LABELS.values(), *LABELS, "all_reduce *B n=2", "*sum *B n=4 pipelined"])
def test_flags_choose_what_is_meant_and_nothing_else(meant: str) -> None:
    """Modes and places that are usual are no words of a label, and ids are as good."""
    chosen = {one for one, label in LABELS.items() if label == meant} or fitting(LABELS, [meant])
    flags = only_flags(chosen, LABELS)
    words = shlex.split(flags)
    assert {*words[::2]} == {"--only"} and fitting(LABELS, words[1::2]) == chosen
    assert len(words) == 2 or meant == "reduce nccl cuda fp32 sum 1024B n=2"


def test_what_no_text_chooses_has_no_flags() -> None:
    twice = {f"{at}": f"reduce {at // 2 + 10}B n=2" for at in range(20)}
    assert only_flags([one for one in twice if int(one) % 2], twice) == ""
