"""DDLB's sweep files run as they are; tests/data/ddlb.json is one that its users have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.load import load_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan

GOLDEN = Path(__file__).parents[1] / "data/ddlb.json"
SMALL: dict[str, Any] = {
    "primitive": "tp_columnwise", "m": 64, "n": 32, "k": 16, "dtype": "float32",
    "implementations": {"pytorch": [{}]}}


def plan_of(
    folder: Path, overrides: list[tuple[str, object]] | None = None, /, **keys: Any,
) -> Plan:
    return make_plan(load_config(written(folder, **keys), overrides or []), 4)


def written(folder: Path, **keys: Any) -> Path:
    path = folder / "ddlb.json"
    path.write_text(json.dumps({"benchmark": SMALL | keys}))
    return path


def refusal(folder: Path, **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(folder, **keys)
    return str(caught.value)


def test_the_golden_file_is_every_combination_on_its_backends() -> None:
    plan = make_plan(load_config(GOLDEN), 4)
    found = {(primitive_of(c).implementation, primitive_of(c).order, c.backend) for c in plan.cases}
    assert found == {("compute_only", "AG_after", "nccl")} | {
        ("torch", order, backend) for order in ("AG_before", "AG_after")
        for backend in ("nccl", "ucc/tl/nccl", "ucc/tl/cuda")}
    assert len(plan.cases) == 7 and plan.duplicates == 0
    assert {(work.m, work.n, work.k, work.dtype) for work in map(primitive_of, plan.cases)} \
        == {(65536, 1024, 1024, "fp32")}
    assert {primitive_of(c).option("weight") for c in plan.cases} == {"replicated"}
    assert {(c.mode, c.warmup, c.iterations, c.is_fixed, c.validate) for c in plan.cases} == {
        ("barrier_start", 5, 50, True, True)}
    assert plan.name == "ddlb" and plan.passes == 3 and plan.config["notes"] == []
    assert all(c.skip is None and c.needs for c in plan.cases)


def test_flops_are_those_that_ddlb_computes() -> None:
    """Each rank of AG_before computes all of C; of AG_after its rows; unsharded: all of C."""
    plan = make_plan(load_config(GOLDEN), 4)
    whole = 2 * 65536 * 1024 * 1024
    by_order = {primitive_of(c).order: primitive_of(c).flops for c in plan.cases
                if primitive_of(c).implementation == "torch"}
    assert by_order == {"AG_before": whole, "AG_after": whole // 4}
    assert [primitive_of(c).flops for c in plan.cases
            if primitive_of(c).implementation == "compute_only"] == [whole]


def test_compute_only_sharded_is_the_rows_of_a_rank_times_the_whole_weight(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, implementations={"compute_only": [{"size": ["sharded", "unsharded"]}]})
    assert [(primitive_of(c).order, primitive_of(c).flops) for c in plan.cases] == [
        ("AG_after", 2 * 16 * 32 * 16), ("AG_after", 2 * 64 * 32 * 16)]


def test_the_command_line_wins_over_the_translated_file(tmp_path: Path) -> None:
    overrides: list[tuple[str, object]] = [
        ("measure.warmup", 1), ("measure.iterations", 3), ("measure.mode", "isolated"),
        ("measure.passes", 1), ("benchmark", "primitive"), ("benchmarks.0.m", [32, 64]),
        ("benchmarks.0.implementations.pytorch.0.backend", "gloo")]
    plan = plan_of(tmp_path, overrides)
    assert [(primitive_of(c).m, c.backend, c.warmup, c.iterations, c.mode) for c in plan.cases] == [
        (32, "gloo", 1, 3, "isolated"), (64, "gloo", 1, 3, "isolated")]
    assert plan.passes == 1


def test_what_is_done_otherwise_is_a_note_that_the_plan_prints(tmp_path: Path) -> None:
    path = written(tmp_path, output_csv="out_{timestamp}.csv", barrier_at_each_iteration=False,
                   time_measurement_backend="cuda_event")
    told = CliRunner().invoke(app, ["plan", "-c", str(path), "--benchmark", "primitive"]).output
    assert "note: output_csv out_{timestamp}.csv: not written" in told
    assert "note: time_measurement_backend cuda_event: no choice here" in told
    assert "note: barrier_at_each_iteration false: a sample is num_iterations = 50 calls" in told


@pytest.mark.parametrize(("warmups", "samples"), [(0, 0), (5, 1), (20, 1), (21, 2)])
def test_without_barriers_a_sample_is_all_iterations(
    tmp_path: Path, warmups: int, samples: int,
) -> None:
    plan = plan_of(tmp_path, num_iterations=20, num_warmups=warmups, validate=False,
                   barrier_at_each_iteration=False)
    (case,) = plan.cases
    assert (case.mode, case.batch, case.warmup) == ("pipelined", 20, samples)
    assert not case.is_fixed and not case.validate


def test_implementations_that_only_plug_ins_have_are_skips(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, implementations={
        "fuser": [{"algorithm": ["default"], "backend": ["nccl", "cuda"]},
                  {"algorithm": ["coll_pipeline"], "s": [2, 8], "backend": ["ucc/tl/nccl"]}],
        "transformer_engine": [{}], "jax": [{}]})
    assert [(primitive_of(c).implementation, c.backend,
             dict(primitive_of(c).options).get("communicator")) for c in plan.cases] == [
        ("fuser", "nccl", "group"), ("fuser", "nccl", "cuda"),
        ("transformer_engine", "nccl", None), ("jax", "nccl", None),
        ("fuser", "ucc/tl/nccl", "group"), ("fuser", "ucc/tl/nccl", "group")]
    packages = ["nvfuser", "nvfuser", "transformer-engine", "jax", "nvfuser", "nvfuser"]
    for case, package in zip(plan.cases, packages, strict=True):
        assert case.skip and f"pip install ./plugins/hpcbench-{package} in a" in case.skip


def test_implementations_of_ours_can_be_named(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, primitive="tp_rowwise", m=[64, 128], implementations={
        "pytorch": [{"backend": "nccl"}], "chunked_pipeline": [{"chunks": [2, 4]}]})
    assert len(plan.cases) == 6 and {primitive_of(c).order for c in plan.cases} == {"RS_after"}


@pytest.mark.parametrize(("keys", "message"), [
    ({"implementations": {"pytorch": [{"oder": "AG_before"}]}},
     'implementations.pytorch: "oder" is not known; did you mean "order"?'),
    ({"implementations": {"pytorch": [{"order": "AG_befor"}]}}, 'did you mean "AG_before"?'),
    ({"implementations": {"pytorch": [{"backend": "cuda"}]}}, 'backend: "cuda" is not known'),
    ({"implementations": {"fuser": [{"algorithm": "ring"}]}}, 'algorithm: "ring" is not known'),
    ({"implementations": {"fuser": [{"s": 0}]}}, "fuser.s: 0 must be a whole number from 1"),
    ({"implementations": {"compute_only": [{"size": "half"}]}}, 'size: "half" is not known'),
    ({"implementations": {"torchrun": [{}]}}, '"torchrun" is not known; did you mean "torch"?'),
    ({"primitive": "tp_rowwise", "implementations": {"pytorch": [{"order": "AG_before"}]}},
     '"AG_before" is not known'),
    ({"primitive": "sp_tp_rowwise"}, 'did you mean "tp_rowwise"?'),
    ({"m": [64, 0]}, "ddlb.json: benchmark.m[1]: must be at least 1, not 0"),
    ({"num_iteration": 3}, "ddlb.json: benchmark.num_iteration: unknown key of a file of DDLB; did "
                           'you mean "num_iterations"?'),
    ({"num_iterations": 0}, "benchmark.num_iterations: must be at least 1, not 0"),
    ({"dtype": "float8"}, "benchmark.dtype: "),
    ({"time_measurement_backend": "tsc"}, "allowed: cpu_clock, cuda_event"),
    ({"validate": "yes"}, 'benchmark.validate: must be true or false, not "yes"'),
])
def test_one_error_states_where_what_and_how(
    tmp_path: Path, keys: dict[str, Any], message: str,
) -> None:
    assert message in refusal(tmp_path, **keys)


@pytest.mark.parametrize(("raw", "message"), [
    ({"benchmark": {}}, "benchmark.primitive: the key is missing"),
    ({"benchmark": SMALL, "measure": {}}, "measure: unknown key of a file of DDLB; allowed: benc"),
    ({"benchmark": "primitive"}, "benchmarks: the key is missing; it holds the sweeps, in order"),
])
def test_a_file_that_is_not_whole(tmp_path: Path, raw: dict[str, Any], message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)
