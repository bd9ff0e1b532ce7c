"""The configuration of a stored plan is typed again, also where earlier code has written it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcbench.config.load import check_config
from hpcbench.config.schema import Launch, Measure, stored_config
from hpcbench.config.section import Fault
from hpcbench.reduce.results_file import open_results

DATA = Path(__file__).parents[1] / "data"
BLOCK = {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "size": "1KiB"}


def test_what_this_version_writes_comes_back_the_same() -> None:
    config = check_config({
        "benchmarks": [BLOCK], "launch": {"port": {"from": 7, "to": 9}, "pass_env": "A_*"},
        "fault": [{"rank": 1, "kind": "slow"}], "notes": "one", "require": "gloo"}, "test")
    assert stored_config(json.loads(json.dumps(config.plain()))) == config
    assert config.launch.port == (7, 9)


@pytest.mark.parametrize("version", [1, 2])
def test_results_of_each_version_have_one(version: int) -> None:
    with open_results(DATA / f"results-v{version}.h5") as file:
        stored = file.results.plan.config
    config = stored_config(stored)
    for section in ("launch", "measure", "output"):
        known = getattr(config, section).model_dump(mode="json", by_alias=True)
        assert {key: known[key] for key in stored.get(section, {}) if key in known} == {
            key: value for key, value in stored.get(section, {}).items() if key in known}


def test_what_is_unknown_is_left_out_and_what_is_missing_has_its_default() -> None:
    config = stored_config({
        "launch": {"timeout_s": 5.0, "of_another_time": 3}, "require": ["gloo"],
        "fault": [{"rank": 1, "kind": "slow", "strange": 1}], "measure": {"passes": "many"}})
    assert config.launch == Launch(timeout_s=5.0)
    assert config.measure == Measure()
    assert (config.require, config.fault, config.benchmarks) == (
        ("gloo",), (Fault(rank=1, kind="slow"),), ())
