"""Tests of the machine in a plan: shapes, kernels, accesses, and what is refused or skipped."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.hardware.plan.gemm import gemm_of
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
