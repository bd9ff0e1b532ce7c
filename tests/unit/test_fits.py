"""What would fit of a training that does not: predicted to fit, and the mildest that is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.memory import ERROR
from hpcbench.kinds.training.plan.planner import advice, changed, predicted
from hpcbench.kinds.training.plan.workload import CHUNKED, Training, training_of
from hpcbench.kinds.training.present.presenter import training_plan_table
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan

GPT2: dict[str, Any] = {"kind": "training", "model": "gpt2", "batch_size": 16,
                        "strategies": "data", "loss": "cross_entropy"}


def work_of(**block: Any) -> Training:
    (case,) = make_plan(check_config({"benchmarks": [GPT2 | block]}, "c.json"), 4).cases
    return training_of(case)


def needed(work: Training, setting: Mapping[str, Any]) -> int:
    """Return what a training needs with other settings, which go together."""
    other = changed(work, setting)
    assert other is not None, setting
    return predicted(other)


def settings(words: str) -> list[dict[str, Any]]:
    """Return the settings of ``to fit, as predicted: batch_size 4, or accumulation 2 with ...``."""
    _, told = words.split("; to fit, as predicted: ")
    return [{name: json.loads(value) if value in ("true", "false") or value.isdecimal() else value
             for name, value in (pair.split(" ") for pair in one.split(" with "))}
            for one in told.split(", or ")]


@pytest.mark.parametrize("block", [
    {}, {"accumulation": 2}, {"strategies": {"pipeline": {"microbatches": 4}}, "batch_size": 32},
    {"strategies": {"data": {"balance": "dynamic"}}}, {"checkpointing": "selective"}])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_what_is_advised_fits_and_nothing_milder_does(block: dict[str, Any], share: float) -> None:
    work = work_of(**block)
    available = int(share * predicted(work))
    for setting in settings(advice(work, available)):
        assert needed(work, setting) <= available, setting
        if setting.keys() == {"batch_size"}:
            milder = [{"batch_size": count} for count in range(
                setting["batch_size"] + 1, work.batch_size + 1)
                if count % (work.accumulation * dict(work.options).get("microbatches", 1)) == 0]
        elif setting.keys() == {"accumulation"}:
            milder = [{"accumulation": count} for count in range(
                work.accumulation + 1, setting["accumulation"]) if work.batch_size % count == 0]
        else:
            continue
        assert not [one for one in milder if predicted(replace(work, **one)) <= available
                    and one["accumulation" if "accumulation" in one else "batch_size"] % 2 == 0]


KEEPING_THE_BATCH: dict[str, list[dict[str, Any]]] = {
    "data": [{"checkpointing": "full"}, {"loss": CHUNKED}, {"bucket_view": True},
             {"strategies": "zero1"}, {"strategies": "fsdp"}, {"strategies": "hsdp"}],
    "fsdp": [{"checkpointing": "full"}, {"loss": CHUNKED}, {"sync_each_batch": True},
             {"reshard": True}]}


def keys_of(setting: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(setting)


@pytest.mark.parametrize(("strategies", "accumulation"), [
    ("data", 1), ("fsdp", 2), ({"fsdp": {"reshard": False}}, 2)])
def test_each_setting_that_is_enough_by_itself_is_advised(
    strategies: Any, accumulation: int,
) -> None:
    work = work_of(strategies=strategies, accumulation=accumulation)
    for setting in KEEPING_THE_BATCH[work.strategy]:
        other = changed(work, setting)
        if other is None or predicted(other) >= predicted(work):
            continue
        told = settings(advice(work, predicted(other)))
        assert keys_of(setting) in map(keys_of, told), (setting, told)
        assert all(needed(work, one) <= predicted(other) for one in told)


def test_several_settings_together_leave_the_batch_as_it_is() -> None:
    work = work_of(strategies="fsdp", accumulation=2, batch_size=4)
    alone = min(needed(work, one) for one in KEEPING_THE_BATCH["fsdp"][:3])
    told = settings(advice(work, alone - 1))
    (several,) = [one for one in told if not {"batch_size", "accumulation"} & {*one}]
    assert len(several) == 2 and needed(work, several) < alone
    all_three = {name: value for one in KEEPING_THE_BATCH["fsdp"][:3]
                 for name, value in one.items()}
    (all_told,) = [one for one in settings(advice(work, needed(work, all_three)))
                   if not {"batch_size", "accumulation"} & {*one}]
    assert all_told == all_three


def test_a_smaller_batch_with_all_else_where_nothing_else_is_enough() -> None:
    work = work_of(batch_size=2, vocab=1000, optimizer="sgd", strategies="single")
    both = {"checkpointing": "full", "loss": CHUNKED}
    least = min(needed(work, one) for one in (both, {"checkpointing": "full"}, {"batch_size": 1}))
    told = settings(advice(work, least - 1))
    assert [one["batch_size"] for one in told] == [1] and "checkpointing" in told[0]
    assert needed(work, told[0]) < least


def test_adapters_are_no_way_to_train_the_same() -> None:
    for share in (0.05, 0.1, 0.3, 0.6):
        assert "lora" not in advice(work_of(), int(share * predicted(work_of())))


def test_too_large_whatever_the_samples_are() -> None:
    words = advice(work_of(), 10**8)
    assert re.fullmatch(r"predicted [\d.]+ GiB; no batch_size fits: 2\.78 GiB of it are no "
                        "activations", words)


def test_a_prediction_that_was_too_low_is_reported() -> None:
    assert ", more was needed; to need half as much: batch_size" in advice(work_of(), 10**12)


def test_a_chunked_loss_is_proposed_where_logits_are_what_does_not_fit() -> None:
    work = work_of(strategies="fsdp", checkpointing="full")
    assert f"loss {CHUNKED}" in advice(work, predicted(work) // 2)
    assert f"loss {CHUNKED}" not in advice(replace(work, loss=CHUNKED), 10**9)


def test_what_is_over_by_less_than_the_error_is_tried_and_noted() -> None:
    whole = predicted(work_of())

    def planned(share: float) -> Case:
        config = {"benchmarks": [GPT2], "hardware": {
            "memory_per_device_gb": share * whole / 1e9, "device_type": "cpu"}}
        return make_plan(check_config(config, "c.json"), 4).cases[0]

    fits, hardly, too_large = (planned(share) for share in (1.01, 0.95, 0.89))
    assert (fits.skip, fits.note, fits.memory_error) == (None, "", ERROR)
    assert hardly.skip is None
    assert "by less than the 10 % that the prediction may be off: it is tried" in hardly.note
    assert too_large.skip is not None and too_large.note == ""
    for listed, start in ((True, "#0 needs "), (False, "1 case: needs ")):
        table = training_plan_table("t", [fits, hardly], listed=listed, hardware={})
        assert table.notes[0].text.startswith(start)
    for setting in settings(advice(work_of(), int(0.89 * whole))):
        assert needed(work_of(), setting) <= 0.89 * whole


def test_a_skip_for_memory_states_what_fits() -> None:
    config = {"benchmarks": [GPT2], "hardware": {"memory_per_device_gb": 16, "device_type": "cpu"}}
    (case,) = make_plan(check_config(config, "c.json"), 4).cases
    assert case.skip is not None
    assert "more than the 14.9 GiB of hardware.memory_per_device_gb 16; to fit" in case.skip
    assert "predicted 1" not in case.skip and "; to fit, as predicted: batch_size " in case.skip
