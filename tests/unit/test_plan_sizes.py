from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbench.backends.availability import RankFacts, missing_tool
from hpcbench.config.axes import DTYPE_BYTES, DTYPES, SPLITS
from hpcbench.config.load import check_config
from hpcbench.operations.collectives import (
    PART_BYTES,
    cold_bytes,
    collectives,
    part_counts,
    planned_cold_bytes,
    rank_bytes,
    rounded,
    smallest_bytes,
    weights,
)
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.units import parse_bytes

MOVING = [name for name in collectives() if name != "barrier"]
SPLIT = [name for name in MOVING if collectives()[name].split]
UNEVEN = [name for name in MOVING if collectives()[name].uneven]
WHOLE = [name for name in MOVING if name not in SPLIT]
sizes = st.integers(0, 2**40)
worlds = st.integers(1, 512)
dtypes = st.sampled_from(DTYPES)


@pytest.mark.parametrize("collective", MOVING)
def test_a_size_that_does_not_fit_names_the_largest_that_does(collective: str) -> None:
    ranks = max(collectives()[collective].min_world_size, 4)
    block = {"kind": "collective", "collective": collective, "size": "1GiB", "backend": "gloo"}
    config = {"benchmarks": [block], "hardware": {
        "memory_per_device_gb": 0.1, "device_type": "cpu"}}
    large, *_ = make_plan(check_config(config, "test"), ranks).cases
    assert large.skip is not None
    named = parse_bytes(large.skip.rpartition(f"; {collective} of ")[2].removesuffix(" fits"))
    share = large.memory_bytes / large.workload.size_bytes  # type: ignore[attr-defined]
    assert share * named <= 1e8 < 2 * share * named


@pytest.mark.parametrize(("collective", "dtype", "ranks", "asked", "size", "count"), [
    ("all_reduce", "fp32", 4, 1048576, 1048576, 262144),
    ("all_reduce", "fp64", 4, 12, 8, 1),
    ("broadcast", "bf16", 3, 7, 6, 3),
    ("send_recv", "uint8", 2, 7, 7, 7),
    ("all_gather", "fp32", 4, 1048576, 1048576, 65536),
    ("all_gather", "fp32", 4, 8, 0, 0),
    ("reduce_scatter", "fp32", 3, 1048576, 1048560, 87380),
    ("all_to_all", "uint8", 8, 1000, 896, 112),
    ("all_to_all", "fp64", 1, 40, 32, 4),
    ("reduce", "fp16", 4, 9, 8, 4),
    ("gather", "fp32", 4, 1048576, 1048576, 65536),
    ("scatter", "fp32", 3, 1048576, 1048560, 87380),
    ("barrier", "uint8", 4, 1024, 0, 0),
])
def test_sizes_as_nccl_tests_prints_them(
    collective: str, dtype: str, ranks: int, asked: int, size: int, count: int
) -> None:
    assert rounded(collective, dtype, ranks, asked) == (size, count)


@settings(deadline=None)
@given(st.sampled_from(SPLIT), dtypes, worlds, sizes)
def test_parts_are_equal_multiples_of_16_bytes(
    collective: str, dtype: str, ranks: int, asked: int
) -> None:
    size, count = rounded(collective, dtype, ranks, asked)
    part = count * DTYPE_BYTES[dtype]
    assert part % PART_BYTES == 0
    assert size == part * ranks
    assert size <= asked < size + (PART_BYTES + DTYPE_BYTES[dtype]) * ranks


@settings(deadline=None)
@given(st.sampled_from(WHOLE), dtypes, worlds, sizes)
def test_whole_buffers_lose_less_than_an_element(
    collective: str, dtype: str, ranks: int, asked: int
) -> None:
    size, count = rounded(collective, dtype, ranks, asked)
    assert size == count * DTYPE_BYTES[dtype]
    assert size <= asked < size + DTYPE_BYTES[dtype]


@settings(deadline=None)
@given(st.sampled_from(MOVING), dtypes, worlds, sizes)
def test_rounding_a_rounded_size_changes_nothing(
    collective: str, dtype: str, ranks: int, asked: int
) -> None:
    size, count = rounded(collective, dtype, ranks, asked)
    assert rounded(collective, dtype, ranks, size) == (size, count)


@settings(deadline=None)
@given(st.sampled_from(MOVING), dtypes, worlds)
def test_the_smallest_size_is_the_first_that_is_not_rounded_to_nothing(
    collective: str, dtype: str, ranks: int
) -> None:
    least = smallest_bytes(collective, dtype, ranks)
    assert rounded(collective, dtype, ranks, least)[0] == least
    assert rounded(collective, dtype, ranks, least - 1)[0] == 0


@pytest.mark.parametrize(("collective", "in_place", "total"), [
    ("all_reduce", False, 4000), ("all_reduce", True, 3000), ("all_gather", False, 2250),
    ("all_gather", True, 2250), ("reduce_scatter", False, 1500), ("reduce_scatter", True, 2250),
    ("all_to_all", False, 3000), ("broadcast", None, 2000), ("send_recv", False, 3000),
    ("reduce", True, 3000), ("gather", False, 2250), ("scatter", False, 1500),
])
def test_memory_is_input_written_buffer_and_expected_result(
    collective: str, in_place: bool | None, total: int
) -> None:
    assert rank_bytes(collective, in_place, 4, 1000) == total


@pytest.mark.parametrize(("split", "shares"), [
    ("even", (1, 1, 1, 1)), ("linear", (1, 2, 3, 4)), ("one_heavy", (4, 1, 1, 1)),
    ("zero", (1, 1, 1, 0)),
])
def test_weights_of_four_ranks(split: str, shares: tuple[int, ...]) -> None:
    assert weights(split, 4) == shares


@pytest.mark.parametrize(("collective", "split", "size", "count"), [
    ("all_gather", "linear", 960, 96), ("all_gather", "one_heavy", 1008, 144),
    ("reduce_scatter", "zero", 1008, 84), ("all_to_all", "linear", 1024, 64),
    ("all_to_all", "one_heavy", 1024, 64), ("all_to_all", "zero", 1024, 64),
])
def test_sizes_of_uneven_parts(collective: str, split: str, size: int, count: int) -> None:
    assert rounded(collective, "fp32", 4, 1024, split) == (size, count)


@settings(deadline=None)
@given(st.sampled_from(UNEVEN), st.sampled_from(SPLITS), dtypes, st.integers(2, 300), sizes)
def test_uneven_parts_add_up_to_the_size(
    collective: str, split: str, dtype: str, ranks: int, asked: int
) -> None:
    size, count = rounded(collective, dtype, ranks, asked, split)
    parts = [part * DTYPE_BYTES[dtype] for part in part_counts(split, ranks, count)]
    assert all(part % PART_BYTES == 0 for part in parts)
    assert max(parts) == count * DTYPE_BYTES[dtype]
    sent, received = sum(parts), [ranks * part for part in parts]
    assert size == (max(sent, *received) if collective == "all_to_all" else sent)
    assert size <= asked
    assert rounded(collective, dtype, ranks, size, split) == (size, count)
    least = smallest_bytes(collective, dtype, ranks, split)
    assert rounded(collective, dtype, ranks, least, split)[0] == least
    assert rounded(collective, dtype, ranks, least - 1, split)[0] == 0


@settings(deadline=None)
@given(st.sampled_from(["zipf:1.2", "lognormal:0.7,seed=3", "max_over_mean:1.5"]), dtypes,
       st.integers(2, 300), sizes)
def test_parts_by_a_load_are_as_even_as_16_bytes_allow(
    split: str, dtype: str, ranks: int, asked: int
) -> None:
    size, count = rounded("all_to_all", dtype, ranks, asked, split)
    element = DTYPE_BYTES[dtype]
    parts = [part * element for part in part_counts(split, ranks, count, dtype)]
    assert all(part % PART_BYTES == 0 for part in parts)
    assert max(parts) == count * element
    assert size == max(sum(parts), ranks * max(parts)) <= asked
    assert rank_bytes("all_to_all", False, ranks, size, split) == sum(parts) + 2 * size
    if split.startswith("max_over_mean") and size:
        mean = sum(parts) / ranks
        assert abs(max(parts) / mean - 1.5) < 1.5 * PART_BYTES / mean


@settings(deadline=None)
@given(st.sampled_from(UNEVEN), st.sampled_from(SPLITS), st.integers(2, 100), sizes)
def test_memory_of_uneven_parts_is_that_of_the_rank_that_holds_most(
    collective: str, split: str, ranks: int, asked: int
) -> None:
    size, count = rounded(collective, "uint8", ranks, asked, split)
    parts = part_counts(split, ranks, count)
    held = {"all_gather": [part + 2 * sum(parts) for part in parts],
            "reduce_scatter": [sum(parts) + 2 * part for part in parts],
            "all_to_all": [sum(parts) + 2 * ranks * part for part in parts]}[collective]
    assert rank_bytes(collective, False, ranks, size, split) == max(held)


@pytest.mark.parametrize(("cache_mb", "wanted_mb"), [
    (0, 134.217728), (6.291456, 134.217728), (40, 160), (50, 200), (126, 504),
    (256, 1024), (None, 1073.741824), (4000, 1073.741824)],
    ids=["host", "V100", "A100", "H100", "B200", "MI300X", "unknown", "more than is planned"])
def test_cold_buffers_are_four_times_the_cache_and_no_more_than_is_planned(
    cache_mb: float | None, wanted_mb: float,
) -> None:
    cache = None if cache_mb is None else int(cache_mb * 1e6)
    assert cold_bytes(cache) == int(wanted_mb * 1e6)
    assert cold_bytes(cache) <= planned_cold_bytes("cuda") == planned_cold_bytes("auto")


def test_cold_cases_on_gpus_are_planned_with_the_most_that_one_can_take() -> None:
    def cases(backend: str, buffers: str, size: str = "16MiB") -> Case:
        (case,) = make_plan(check_config({"benchmarks": [
            {"kind": "collective", "collective": "all_reduce", "backend": backend, "size": size,
             "cache": buffers}]}, "test"), 2).cases
        return case

    assert cases("gloo", "cold").memory_bytes == 8 * cases("gloo", "warm").memory_bytes
    assert cases("nccl", "cold").memory_bytes == 64 * cases("nccl", "warm").memory_bytes
    for backend in ("gloo", "nccl"):
        assert cases(backend, "cold", "128KiB").skip is None
        assert "begins at 131072 B" in str(cases(backend, "cold", "64KiB").skip)
    small = cases("nccl", "cold", "128KiB")
    assert small.memory_bytes == 1024 * cases("nccl", "warm", "128KiB").memory_bytes


@pytest.mark.parametrize(("cache", "begins"), [
    (6 * 2**20, 2**17), (50 * 2**20, 204800), (126 * 10**6, 492188), (256 * 10**6, 10**6),
    (None, 2**20)], ids=["V100", "H100", "B200", "MI300X", "unknown"])
def test_a_cold_case_on_a_gpu_is_skipped_only_where_its_cache_asks_for_too_many_sets(
    cache: int | None, begins: int,
) -> None:
    sizes = sorted({2**17, begins // 4 * 4 - 4, -(-begins // 4) * 4, 2**20})
    cases = make_plan(check_config({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "backend": "nccl", "size": sizes,
         "cache": "cold"}]}, "test"), 1).cases
    facts = {"cuda": {"names": ["GPU"], "uuids": ["u0"], "visible": None, "cache_bytes": [cache]},
             "versions": {"torch": "2.13.0"}}
    for case in cases:
        size = case.workload.to_json()["size_bytes"]
        reason = case.skip or missing_tool(case, "cuda", [RankFacts(0, "host", 0, facts)])
        assert (reason is None) == (size >= begins), (size, reason)
        assert reason is None or f"begins at {begins} B" in reason or size < 2**17
