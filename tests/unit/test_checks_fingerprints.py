"""Large models beside each other; docs/checks.md names each test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.errors import ExitCode
from hpcbench.kinds.training.derive.fingerprints import Counterpart
from hpcbench.kinds.training.present import charts as words
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import Results
from hpcbench.trace.schema import Record
from synthetic import plan_of, write_synthetic_run
from training_cases import make_training, make_training_case

ELEMENTS = {"embedding.tokens.weight": 4096, "blocks.0.mlp.up.weight": 1024,
            "blocks.0.attention.k.bias": 64}
STRATEGIES = ("data", "fsdp", "zero1")
CASES = [make_training_case(make_training(name), index=at) for at, name in enumerate(STRATEGIES)]
TelemetryReport = Mapping[str, Any]


def base(**changes: Any) -> dict[str, Any]:
    """Return fingerprints of normal numbers, the same for each call."""
    draw = np.random.default_rng(1)

    def sketch(scale: float) -> dict[str, list[list[float]]]:
        return {name: [[scale * count**0.5, *(scale * count**0.5 * draw.normal(size=8))]]
                for name, count in ELEMENTS.items()}

    kinds = {"weights": sketch(0.02), "gradients": sketch(1e-3), "updates": sketch(1e-4)}
    kinds["gradients"]["blocks.0.attention.k.bias"] = [[1e-9] * 9]  # rounding, and no more
    return {"hidden": 64, "relative": 1e-3, "floor": 0.0, "least": 0.01, "optimizer": "adamw",
            "rate": 1e-4, "elements": ELEMENTS, **kinds, **changes}


def scaled(what: str, name: str, factor: float, *, copy: bool = False) -> dict[str, Any]:
    """Return them with the numbers of one parameter, or of a copy of it, scaled."""
    found = base()
    numbers = [factor * number for number in found[what][name][0]]
    found[what][name] = [found[what][name][0], numbers] if copy else [numbers]
    return found


def reduced(folder: Path, *fingerprints: TelemetryReport | None, cases: Any = CASES) -> Results:
    """Return the results of a run in which cases recorded these."""
    ids = {case.case_id: found for case, found in zip(cases, fingerprints, strict=True)}
    devices = {case.case_id: "cuda:0" if case.device == "cuda" else "cpu" for case in cases}

    def change(rank: int, record: Record) -> tuple[Record]:
        found = ids.get(record.case_id)
        return (replace(record, device=devices[record.case_id],
                        detail={"fingerprints": found} if found and not rank else {}),)

    write_synthetic_run(folder, plan_of(list(cases), 2), change=change)
    return reduce_folder(folder)


def beside(results: Results) -> list[Counterpart | None]:
    return [results.derived["training"][item.case.case_id]["counterpart"]
            for item in results.cases]


def codes(results: Results) -> list[str]:
    return [finding.message for finding in results.findings if finding.code == "HB158"]


def test_hb158_layouts_that_agree_are_no_finding(tmp_path: Path) -> None:
    results = reduced(
        tmp_path, base(), base(), scaled("gradients", "blocks.0.mlp.up.weight", 1 + 1e-5))
    assert codes(results) == []
    found = beside(results)
    assert [one and one.words for one in found] == [
        "fsdp on 2 ranks", "data on 2 ranks", "data on 2 ranks"]
    assert found[2] and found[2].share and 0 < found[2].share < 1
    assert found[2].name == "blocks.0.mlp.up.weight"


@pytest.mark.parametrize(("what", "factor"), [
    ("gradients", 1.01), ("gradients", 0.99), ("gradients", float("nan")), ("weights", 1.000001),
    ("updates", 2.0)])
def test_hb158_a_layout_that_differs_is_named(
    tmp_path: Path, what: str, factor: float,
) -> None:
    results = reduced(
        tmp_path, base(), base(), scaled(what, "blocks.0.mlp.up.weight", factor))
    (message,) = codes(results)
    assert f"({CASES[2].case_id}): 1 of 9 comparisons" in message
    assert f"data on 2 ranks ({CASES[0].case_id})" in message
    assert f"first {what} of blocks.0.mlp.up.weight" in message
    assert exit_code(results) == ExitCode.FINDINGS
    assert results.cases[2].status == "ok"
    assert words.counterpart_text(beside(results)[2] or Counterpart()) == (
        "differs from that of data on 2 ranks (HB158)")


def test_hb158_the_first_may_be_the_odd_one(tmp_path: Path) -> None:
    results = reduced(
        tmp_path, scaled("gradients", "blocks.0.mlp.up.weight", 1.5), base(), base())
    (message,) = codes(results)
    assert f"({CASES[0].case_id}): 1 of 9" in message and "fsdp on 2 ranks" in message


def test_hb158_copies_on_ranks_that_differ(tmp_path: Path) -> None:
    (message,) = codes(reduced(
        tmp_path, scaled("gradients", "embedding.tokens.weight", 1.5, copy=True),
        cases=CASES[:1]))
    assert "differ among the ranks' copies" in message and "embedding.tokens.weight" in message


def test_hb158_a_layout_whose_copies_differ_blames_no_other(tmp_path: Path) -> None:
    broken = scaled("gradients", "embedding.tokens.weight", 1.5, copy=True)
    broken["gradients"]["blocks.0.mlp.up.weight"] = scaled(
        "gradients", "blocks.0.mlp.up.weight", 1.5)["gradients"]["blocks.0.mlp.up.weight"]
    results = reduced(tmp_path / "two", broken, base(), cases=CASES[:2])
    (message,) = codes(results)
    assert f"({CASES[0].case_id})" in message and "differ among the ranks' copies" in message
    other = beside(results)[1]
    assert other and other.missing and "copies" in other.missing
    (message,) = codes(reduced(tmp_path / "three", broken, base(), base()))
    assert f"({CASES[0].case_id})" in message


def test_hb158_rounding_alone_is_not_compared_with_itself(tmp_path: Path) -> None:
    assert codes(reduced(tmp_path, base(), base(), scaled(
        "gradients", "blocks.0.attention.k.bias", -3.0))) == []


def test_hb158_rounding_of_a_key_s_bias_is_relative_to_its_weight(tmp_path: Path) -> None:
    elements = {**ELEMENTS, "blocks.0.attention.k.weight": 4096}
    beside_weight = {"elements": elements}
    for kind in ("weights", "gradients", "updates"):
        beside_weight[kind] = dict(base()[kind])
        beside_weight[kind]["blocks.0.attention.k.weight"] = [[1e-2] * 9]
    rounded = {**beside_weight, "gradients": dict(beside_weight["gradients"])}
    rounded["gradients"]["blocks.0.attention.k.bias"] = [[1.2e-6] * 9]  # 1e-3 of 1e-2 / sqrt(64)
    assert codes(reduced(tmp_path / "beside", base(**beside_weight), base(**rounded),
                         cases=CASES[:2])) == []
    alone = {**base()["gradients"], "blocks.0.attention.k.bias": [[1.2e-6] * 9]}
    first, _ = codes(reduced(
        tmp_path / "none", base(), base(gradients=alone), cases=CASES[:2]))
    assert "k.bias" in first


@pytest.mark.parametrize(("fingerprints", "cases", "why"), [
    ((base(), base()), [CASES[0], make_training_case(make_training("fsdp", batch_size=8), index=1)],
     "no other layout of the run takes a step of the same samples, which are 8 of 32 tokens"),
    (({"missing": "rounding"}, base()), CASES[:2], "rounding")])
def test_hb158_what_is_compared_with_nothing_states_why(
    tmp_path: Path, fingerprints: tuple[TelemetryReport, ...], cases: Any, why: str,
) -> None:
    results = reduced(tmp_path, *fingerprints, cases=cases)
    first = beside(results)[0]
    assert codes(results) == [] and first is not None
    assert words.counterpart_text(first) == f"compared with no other strategy: {why}"


def test_hb158_small_models_are_not_compared_so(tmp_path: Path) -> None:
    assert beside(reduced(tmp_path, None, None, None)) == [None, None, None]


def test_a_gpu_is_not_compared_with_a_cpu(tmp_path: Path) -> None:
    """Weights of the seed are others there; two cases on GPUs are compared with each other."""
    cases = [replace(case, device="cuda" if at else "cpu", backend="nccl" if at else "gloo")
             for at, case in enumerate(CASES)]
    other = scaled("weights", "blocks.0.mlp.up.weight", 1.5)
    first, *on_gpus = beside(reduced(tmp_path, base(), other, other, cases=cases))
    assert first is None or not first.n_wrong
    assert all(one is None or not one.n_wrong for one in on_gpus)
