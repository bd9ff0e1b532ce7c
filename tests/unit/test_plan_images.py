"""Sweeps over ResNets: what they ask for, what cannot run, and what is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.derive.rates import rates
from hpcbench.kinds.training.plan.any_model import (
    RESNETS,
    model_of,
    resnet_with_extents,
    stage_flops,
)
from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.predict import predict, predict_stage
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present.presenter import training_listing
from hpcbench.plan.case import Plan, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.views.table import Table
from results_factory import make_results
from training_results import trained

Capture = pytest.CaptureFixture[str]
BLOCK: dict[str, Any] = {"kind": "training", "model": "resnet50", "strategies": "data"}


def plan_of(*blocks: dict[str, Any], ranks: int = 4) -> Plan:
    whole = [BLOCK | block for block in blocks]
    return make_plan(check_config({"benchmarks": whole}, "c.json"), ranks)


def test_a_resnet_is_named_and_shrunk() -> None:
    whole, small = (training_of(case) for case in plan_of(
        {}, {"layers": 5, "width": 16, "classes": 10, "image_size": 64}).cases)
    assert model_of(whole) == RESNETS["resnet50"]
    assert (whole.parameters, whole.shrunk, whole.tokens) == (25_557_032, False, None)
    assert dict(whole.flops) == {"counted": stage_flops(RESNETS["resnet50"], range(16), 32)}
    assert (small.layers, small.width, small.classes, small.image_size, small.shrunk) == (
        5, 16, 10, 64, True)
    assert (small.hidden, small.vocab, small.seq_length) == (0, 0, 0)


@pytest.mark.parametrize(("layers", "blocks"), [
    (4, (1, 1, 1, 1)), (5, (2, 1, 1, 1)), (8, (2, 2, 2, 2)), (13, (3, 4, 3, 3)),
    (14, (3, 4, 4, 3)), (16, (3, 4, 6, 3)), (17, (3, 4, 7, 3)), (33, (3, 4, 23, 3))])
def test_stages_lose_blocks_evenly_and_one_gets_more(layers: int, blocks: tuple[int, ...]) -> None:
    found = resnet_with_extents("resnet50", layers=layers)
    assert not isinstance(found, str)
    assert found.blocks == blocks


def test_larger_resnets_are_planned_and_named() -> None:
    """44,549,160: resnet101 of torchvision."""
    deep, wide = plan_of({"layers": 33}, {"width": 128, "classes": 2000, "image_size": 448}).cases
    assert training_of(deep).parameters == 44_549_160
    assert "layers=33 width=64 image=224" in deep.label
    assert "layers=16 width=128 classes=2000 image=448" in wide.label
    for case in (deep, wide):
        assert (training_of(case).changed, training_of(case).shrunk) == (True, False)
        assert predict(training_of(case)).memory.total > 4 * 4 * training_of(case).parameters


def test_extents_of_one_kind_are_no_axes_of_the_other() -> None:
    cases = plan_of({"model": ["resnet50", "bert-large"], "seq_length": [64, 128, 256],
                     "image_size": [64, 96], "batch_size": 2}).cases
    assert [(training_of(case).model, training_of(case).image_size or training_of(case).seq_length)
            for case in cases] == [("resnet50", 64), ("resnet50", 96), ("bert-large", 64),
                                   ("bert-large", 128), ("bert-large", 256)]
    with pytest.raises(ConfigError, match="seq_length: resnet50 has no such extent; take away"):
        plan_of({"seq_length": 64})
    with pytest.raises(ConfigError, match="classes: gpt2 and bert-large has no such extent"):
        plan_of({"model": ["gpt2", "bert-large"], "classes": 10})


@pytest.mark.parametrize(("block", "words"), [
    ({"layers": 3}, "layers=3 is less than 4, one block for each stage"),
    ({"strategies": "tensor"}, "resnet50 is made of convolutions, for which no strategy"),
    ({"strategies": {"hybrid": {"tp": 2}}}, "resnet50 is made of convolutions"),
    ({"checkpointing": "full"}, "twice in the running statistics of its batch norms"),
    ({"image_size": 32, "batch_size": 2, "accumulation": 2}, "a batch norm of one pixel"),
    ({"batch_size": 4, "accumulation": 3}, "4 samples (batch_size) cannot be divided evenly"),
    ({"layers": 5, "strategies": "model"}, "5 layers cannot be divided evenly among 4 stages"),
])
def test_what_cannot_run_is_a_skip_with_its_reason(block: dict[str, Any], words: str) -> None:
    (case,) = plan_of(block).cases
    assert case.skip is not None
    assert words in case.skip


def test_plans_of_images_survive_json_and_old_ones_load() -> None:
    plan = plan_of({"strategies": ["data", "pipeline"]})
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    old = plan_to_json(plan_of({"model": "gpt2"}))
    for case in old["cases"]:
        for name in ("width", "classes", "image_size"):
            del case["workload"][name]
    assert plan_from_json(old) == plan_of({"model": "gpt2"})


def test_memory_by_hand() -> None:
    work = training_of(
        plan_of({"batch_size": 64, "world_size": 1, "strategies": "single"}).cases[0])
    memory, updated = predict(work).memory, moments(work, stages_of(work)[0])[-1]
    count = 25_557_032
    assert (updated.parameters, updated.gradients) == (4 * count, 4 * count)
    assert memory.optimizer == 8 * count + 4 * 161
    norms = 26_560  # channels of the 53 batch norms
    assert memory.buffers == 8 * norms + 8 * 53
    # Convolutions return 11.1 million numbers of an image (Radosavovic et al., arXiv:2003.13678,
    # table 4). Each is kept in 4 bytes, and about as much of what is behind norms and ReLUs.
    assert 80e6 < memory.activations / 64 < 95e6
    half = predict(replace(work, dtype="bf16")).memory
    assert half.activations == pytest.approx(memory.activations / 2, rel=0.02)


def test_stages_have_all_of_it() -> None:
    work = training_of(plan_of({"batch_size": 16, "strategies": {"pipeline": {"microbatches": 8}}},
                   ).cases[0])
    stages = stages_of(work)
    shape = model_of(work)
    names = [item.name for stage in stages for item in stage.tensors(shape)]
    assert len(names) == len(set(names)) == 161
    found = [predict_stage(work, stage) for stage in stages]
    assert sum(one.memory.parameters for one in found) == 4 * work.parameters
    assert sum(one.hardware_flops for one in found) == dict(work.flops)["counted"]
    sent = [one.calls[0].size_bytes for one in found]
    # behind 4, 8 and 12 blocks: 512 x 28^2, 1024 x 14^2 twice
    ahead = [16 * 4 * elements for elements in (512 * 28**2, 1024 * 14**2, 1024 * 14**2)]
    assert sent == [ahead[0], ahead[0] + ahead[1], ahead[1] + ahead[2], ahead[2]]


def test_images_have_no_tokens(tmp_path: Any, capsys: Capture) -> None:
    case = plan_of({"layers": 4, "width": 8, "image_size": 64, "world_size": 2}).cases[0]
    assert rates(training_of(case), 0.5) == (32, None)
    print_results(make_results((trained(case, 0.5),)), tmp_path)
    text = capsys.readouterr().out
    assert "resnet50 (4 layers, width 8, images of 64 pixels, shrunk)" in text
    header = next(line for line in text.splitlines() if line.startswith("strategy"))
    assert "samples/s" in header
    assert "tokens/s" not in header


def test_plans_and_lists_name_both_kinds(capsys: Capture) -> None:
    print_plan(plan_of({"model": ["resnet50", "gpt2"], "batch_size": list(range(1, 41))}))
    text = capsys.readouterr().out
    assert "224 pixels" in text
    assert "1024 tokens" in text
    print_plan(plan_of({"image_size": 96}))
    (header,) = [line for line in capsys.readouterr().out.splitlines() if "strategy" in line]
    assert " width " in header
    assert " hidden " not in header
    rows = [row.cells for table in training_listing() if isinstance(table, Table)
            for row in table.rows]
    assert ("resnet50", 16, 64, 1000, 224, "25,557,032") in rows
