"""What tensor, pipeline and hybrid strategies take and refuse, and what they say of it."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.kinds.training.derive.slow_ranks import predicted_bubble
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan

BLOCK: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "batch_size": 8, "backend": "gloo"}


def _case(ranks: int, strategies: Any, **options: Any) -> Case:
    config = {"benchmarks": [{**BLOCK, "strategies": strategies, **options}]}
    case, = make_plan(check_config(config, "test"), ranks).cases
    return case


@pytest.mark.parametrize(("ranks", "strategies", "degrees"), [
    (4, ["tensor"], (1, 4, 1)),
    (4, ["model"], (1, 1, 4)),
    (4, ["pipeline"], (1, 1, 4)),
    (8, {"hybrid": {"tp": 2}}, (4, 2, 1)),
    (8, {"hybrid": {"pp": 2, "data": "fsdp"}}, (4, 1, 2)),
    (8, {"hybrid": {"tp": 2, "pp": 4}}, (1, 2, 4)),
    (16, {"hybrid": {"tp": 2, "pp": 2}}, (4, 2, 2)),
    (8, ["hybrid"], (4, 1, 2)),
    (4, {"hybrid": {"data": "fsdp", "microbatches": 2}}, (2, 1, 2)),
])
def test_ranks_are_divided(ranks: int, strategies: Any, degrees: tuple[int, int, int]) -> None:
    case = _case(ranks, strategies)
    work = training_of(case)
    assert (case.skip, work.dp, work.tp, work.pp) == (None, *degrees)
    assert (work.global_batch, work.tokens) == (8 * work.dp, 8 * work.dp * 128)


@pytest.mark.parametrize(("ranks", "strategies", "options", "reason"), [
    (1, ["tensor"], {}, "one rank has no other to share a layer with"),
    (1, ["pipeline"], {}, "one rank is no pipeline"),
    (16, ["tensor"], {}, "8 attention heads cannot be divided evenly among 16 ranks (tp)"),
    (4, {"tensor": {"sequence_parallel": True}}, {"seq_length": 126},
     "126 tokens cannot be divided evenly among 4 ranks (tp)"),
    (4, {"pipeline": {"microbatches": 3}}, {},
     "1F1B needs as many micro-batches as stages: 3 micro-batches are fewer than 4 stages"),
    (4, {"pipeline": {"microbatches": 4}}, {"batch_size": 6},
     "6 samples (batch_size / accumulation) cannot be divided evenly into 4 micro-batches"),
    (4, {"pipeline": {"schedule": "LoopedBFS", "stages_per_rank": 3}}, {},
     "8 layers cannot be divided evenly among 12 stages"),
    (2, {"hybrid": {"tp": 2}}, {}, "dp=1 x tp=2 x pp=1 has not two dimensions"),
    (2, ["hybrid"], {}, "dp=1 x tp=1 x pp=2 has not two dimensions"),
    (3, ["hybrid"], {}, "3 ranks cannot be divided evenly into replicas of tp=1 x pp=2"),
    (4, {"hybrid": {"tp": 1}}, {}, "dp=4 x tp=1 x pp=1 has not two dimensions"),
    (6, {"hybrid": {"tp": 2, "pp": 2}}, {},
     "6 ranks cannot be divided evenly into replicas of tp=2 x pp=2"),
    (4, {"hybrid": {"tp": 2, "schedule": "GPipe"}}, {}, "schedule=GPipe has no effect with pp=1"),
    (4, {"hybrid": {"pp": 2, "loss_parallel": True}}, {},
     "loss_parallel=True has no effect with tp=1"),
    (4, {"hybrid": {"tp": 2, "pp": 2, "data": "fsdp"}}, {}, "data=fsdp has no effect with dp=1"),
])
def test_what_does_not_fit_has_a_reason(
    ranks: int, strategies: Any, options: dict[str, Any], reason: str,
) -> None:
    case = _case(ranks, strategies, **options)
    assert reason in str(case.skip)


def test_a_hybrid_without_degrees_is_layers_times_replicas() -> None:
    """Degrees that are given keep their ids: the others have their defaults as before."""
    assert _case(4, ["hybrid"]).case_id == _case(4, {"hybrid": {"tp": 1, "pp": 2}}).case_id
    assert _case(4, {"hybrid": {"tp": 2}}).case_id == _case(4, {"hybrid": {"tp": 2, "pp": 1}}
                                                            ).case_id


def test_calls_are_those_of_the_dimensions() -> None:
    assert training_of(_case(4, ["tensor"])).calls == ("all_reduce", "all_gather")
    together = {"sequence_parallel": True, "loss_parallel": True}
    assert training_of(_case(4, {"tensor": together})).calls == (
        "all_reduce", "reduce_scatter", "all_gather")
    assert training_of(_case(4, ["model"])).calls == ("send_recv",)
    assert training_of(_case(8, {"hybrid": {"tp": 2, "pp": 2}})).calls == (
        "all_reduce", "all_gather", "send_recv")


def test_the_bubble_is_known_before_anything_runs() -> None:
    assert predicted_bubble(training_of(_case(4, ["tensor"]))) is None
    assert predicted_bubble(training_of(_case(4, ["model"]))) == pytest.approx(3 / 4)
    assert predicted_bubble(training_of(_case(4, ["pipeline"]))) == pytest.approx(3 / 7)
    zero = {"hybrid": {"pp": 2, "schedule": "ZBVZeroBubble", "microbatches": 8}}
    assert predicted_bubble(training_of(_case(4, zero))) == pytest.approx(1 / 49)
