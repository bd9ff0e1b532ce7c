"""The estimate of a training has all that a pass does, not only its timed steps."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan

GPT: dict[str, Any] = {"kind": "training", "model": "gpt2", "strategies": "data",
                       "iterations": 4, "warmup": 0, "backend": "gloo"}


def case_of(**more: Any) -> Case:
    case, = make_plan(check_config({"benchmarks": [GPT | more]}, "test"), 2).cases
    return case


def test_the_counted_step_counts_as_more_than_one() -> None:
    four, eight, plain = (case_of(validate=False, **more).estimate_s for more in (
        {}, {"iterations": 8}, {"count_step": False}))
    step_s = (eight - four) / 4
    assert four - plain == pytest.approx(2.5 * step_s)


@pytest.mark.parametrize(("more", "steps", "least", "most"), [
    ({"layers": 2, "hidden": 256, "heads": 4, "seq_length": 32, "batch_size": 1}, 0, 2, 6),
    ({"layers": 2, "hidden": 384, "heads": 4}, 1, 6, 8),  # too many tokens: a short step of it
    ({}, 1, 1.5, 2.5)],  # too large: a small model, and fingerprints
    ids=["itself", "short step", "small model"])
def test_parity_counts_as_what_is_compared(
    more: dict[str, Any], steps: int, least: float, most: float,
) -> None:
    more = {"count_step": False, **more}
    four, five = (case_of(validate=False, **{**more, "iterations": n}).estimate_s for n in (4, 5))
    added = case_of(**more).estimate_s - four - steps * (five - four)
    assert least <= added <= most


def test_nothing_is_proved_without_communication() -> None:
    off = {"communication": "off"}
    assert case_of(**off).estimate_s == case_of(validate=False, **off).estimate_s
