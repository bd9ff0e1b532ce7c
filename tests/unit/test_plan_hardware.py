"""Tests of the machine in a plan: shapes, kernels, accesses, and what is refused or skipped."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts, missing_tool
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.hardware.plan.gemm import ELEMENT_BYTES, PRODUCTS, RESULT_BYTES, gemm_of
from hpcbench.plan.case import Case, Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan


def plan(ranks: int = 2, **block: Any) -> Plan:
    return make_plan(check_config({"benchmarks": [{"kind": "hardware", **block}]}, "x"), ranks)


def skips(**block: Any) -> set[str]:
    return {case.skip or "" for case in plan(**block).cases}


def labels(cases: tuple[Case, ...]) -> set[str]:
    return {case.label for case in cases}


def test_a_shape_is_one_number_or_three() -> None:
    cases = plan(test="gemm", shape=["64", "1x2x3"]).cases
    assert {(work.m, work.n, work.k) for work in map(gemm_of, cases)} == {(64, 64, 64), (1, 2, 3)}
    assert {gemm_of(case).flops for case in cases} == {2 * 64**3, 2 * 1 * 2 * 3}
    numbers = plan(test="gemm", shape=[64, "1x2x3"]).cases
    assert [case.case_id for case in numbers] == [case.case_id for case in cases]
    assert len(plan(test="gemm", shape=64).cases) == 1


def test_without_a_shape_there_is_a_search() -> None:
    assert len(plan(test="gemm").cases) == 4


def test_a_models_layers_give_n_and_k() -> None:
    cases = plan(test="gemm", model="gpt2", layer="mlp_up", tokens=128).cases
    assert [(w.m, w.n, w.k, w.shape) for w in map(gemm_of, cases)] == [
        (128, 3072, 768, "gpt2 mlp_up")]
    assert len(plan(test="gemm", model="gpt2", tokens=128).cases) == 4


@pytest.mark.parametrize(("block", "said"), [
    ({"test": "gem"}, 'did you mean "gemm"'),
    ({"test": "gemm", "threads": 2}, "threads: only test stream reads it"),
    ({"test": "stream", "folder": "x"}, "folder: only test storage reads it"),
    ({"test": "gemm", "size": 4}, "size: only test stream, pairs, storage reads it"),
    ({"test": "gemm", "shape": "4x4"}, '"4x4" is no shape; write MxNxK'),
    ({"test": "gemm", "shape": "0"}, '"0" is no shape'),
    ({"test": "gemm", "shape": -4}, '"-4" is no shape'),
    ({"test": "gemm", "shape": True}, "must be text"),
    ({"test": "gemm", "model": "gpt2"}, "model needs tokens"),
    ({"test": "gemm", "tokens": 3}, "layer and tokens go with model"),
    ({"test": "gemm", "model": "gpt2", "tokens": 3, "shape": "4"}, "both give the shape"),
    ({"test": "gemm", "model": "gtp2", "tokens": 3}, 'did you mean "gpt2"'),
    ({"test": "gemm", "model": "gpt2", "layer": "mlp", "tokens": 3}, "layer: "),
    ({"test": "gemm", "dtype": "fp7"}, '"fp7" is not known'),
    ({"test": "stream", "kernel": "daxpy"}, '"daxpy" is not known'),
    ({"test": "stream", "threads": 0}, "number of threads"),
    ({"test": "storage", "access": "append"}, '"append" is not known'),
    ({}, "test"),
])
def test_bad_input_is_one_line(block: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(**block)
    assert said in str(caught.value) and len(str(caught.value).splitlines()) == 1, caught.value


@pytest.mark.parametrize(("block", "said"), [
    ({"test": "gemm", "dtype": "tf32"}, "matrix units"),
    ({"test": "gemm", "dtype": "fp8_e4m3", "shape": "24"}, "that 16 divides"),
    ({"test": "gemm", "dtype": "int64"}, "gemm has no int64"),
    ({"test": "stream", "kernel": "host_to_device"}, "between host and GPU"),
    ({"test": "stream", "dtype": "uint8"}, "stream has no uint8"),
    ({"test": "storage", "backend": "mpi"}, "storage uses no backend"),
    ({"test": "storage", "device": "cuda"}, "written from the host"),
    ({"test": "storage", "size": 8}, "less than a page"),
    ({"test": "gemm", "world_size": 3}, "more than the job's 2 ranks"),
])
def test_what_cannot_run_is_a_skip(block: dict[str, Any], said: str) -> None:
    found = skips(**block)
    assert all(said in reason for reason in found), found


def on_cuda(dtype: str, shape: str, **block: Any) -> list[Case]:
    return list(plan(1, test="gemm", dtype=dtype, shape=shape, backend="nccl", device="cuda",
                     **block).cases)


@pytest.mark.parametrize(("dtype", "shape", "said"), [
    ("int8", "16x64x64", "m greater than 16"), ("int8", "17x64x64", None),
    ("int8", "32x12x64", "that 8 divides"), ("int8", "32x64x12", "that 8 divides"),
    ("int8", "24x24x24", None), ("fp8_e4m3", "1x16x16", None),
    ("fp8_e4m3", "32x24x32", "that 16 divides"), ("fp8_e5m2", "32x32x24", "that 16 divides"),
    ("bf16", "1x3x5", None), ("tf32", "1x3x5", None)])
def test_what_cublaslt_cannot_multiply_is_a_skip(
    dtype: str, shape: str, said: str | None,
) -> None:
    (case,) = on_cuda(dtype, shape)
    assert said in case.skip if case.skip and said else case.skip is said


def test_on_a_cpu_int8_has_any_number_of_rows() -> None:
    assert skips(test="gemm", dtype="int8", shape="1x64x64") == {""}


def test_e5m2_is_multiplied_by_e4m3_and_the_label_shows_it() -> None:
    (case,) = on_cuda("fp8_e5m2", "64")
    assert (gemm_of(case).dtype, gemm_of(case).right) == ("fp8_e5m2", "fp8_e4m3")
    assert "fp8_e5m2" in case.label and "by=fp8_e4m3" in case.label
    assert "by=" not in on_cuda("fp8_e4m3", "64")[0].label


def test_sums_of_fp8_are_a_choice_on_cuda_alone() -> None:
    both = {"fast_accumulation": [False, True]}
    assert [gemm_of(case).fast_accumulation for case in on_cuda("fp8_e4m3", "64", **both)] == [
        False, True]
    assert [gemm_of(case).fast_accumulation for case in on_cuda("bf16", "64", **both)] == [False]
    found = plan(test="gemm", dtype="fp8_e4m3", shape="64", **both).cases
    assert [bool(case.skip) for case in found] == [False, True]
    assert "CUDA" in str(found[1].skip)


@pytest.mark.parametrize(("dtype", "capability", "runs"), [
    ("fp8_e4m3", (8, 6), False), ("fp8_e5m2", (8, 0), False), ("fp8_e4m3", (8, 9), True),
    ("fp8_e5m2", (9, 0), True), ("tf32", (7, 5), False), ("tf32", (8, 0), True),
    ("fp16", (7, 0), True), ("int8", (7, 5), True)])
def test_types_that_a_gpu_lacks_are_a_skip(
    dtype: str, capability: tuple[int, int], runs: bool,
) -> None:
    (case,) = on_cuda(dtype, "64")
    rank = RankFacts(0, "here", 0, {"versions": {}, "cuda": {
        "names": ["GPU"], "uuids": [""], "visible": None, "capabilities": [list(capability)]}})
    assert (missing_tool(case, "cuda", [rank]) is None) == runs


def test_every_type_of_the_block_has_its_row_of_facts() -> None:
    assert set(PRODUCTS) == set(ELEMENT_BYTES) == set(RESULT_BYTES)
    for traits in PRODUCTS.values():
        special = (traits.multiple, traits.rows_above, traits.column_major) != (1, 0, False)
        assert traits.sources or not special, "a fact without its source"


def test_axes_that_a_kernel_does_not_have_make_no_cases() -> None:
    found = plan(test="stream", kernel=["copy", "host_to_device"], device=["cpu", "cuda"],
                 threads=[1, 2], memory=["pinned", "pageable"])
    on_cpu = [case.label for case in found.cases if case.device == "cpu" and case.skip is None]
    assert len(on_cpu) == 2 and all("copy" in label for label in on_cpu)
    assert found.duplicates == 0


def test_several_tests_share_a_block() -> None:
    found = plan(test=["gemm", "stream", "storage"], size="1MiB", shape="64")
    assert {case.workload.name for case in found.cases} == {"gemm", "stream", "storage"}


def test_a_plan_is_read_as_it_was_written() -> None:
    found = plan(test=["gemm", "stream", "storage"], dtype=["fp32", "int8"])
    assert plan_from_json(plan_to_json(found)) == found
    assert len(labels(found.cases)) == len(found.cases)
