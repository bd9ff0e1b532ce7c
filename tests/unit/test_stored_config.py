"""The configuration of a stored plan is typed again."""

from __future__ import annotations

import json

import pytest

from hpcbench.config.load import check_config
from hpcbench.config.schema import stored_config
from hpcbench.errors import ConfigError

BLOCK = {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "size": "1KiB"}


def test_what_this_version_writes_comes_back_the_same_but_for_its_blocks() -> None:
    config = check_config({
        "benchmarks": [BLOCK], "launch": {"port": {"from": 7, "to": 9}, "pass_env": "A_*"},
        "fault": [{"rank": 1, "kind": "slow"}], "notes": "one",
        "required_backends": "gloo"}, "test")
    plain = json.loads(json.dumps(config.plain()))
    assert stored_config(plain).plain() == {**plain, "benchmarks": []}
    assert stored_config(plain).launch.port == (7, 9)
    of_a_plugin = {**plain, "benchmarks": [{"kind": "not_installed"}]}
    assert stored_config(of_a_plugin) == stored_config(plain)


def test_what_another_version_wrote_is_refused_with_its_keys() -> None:
    with pytest.raises(ConfigError, match="another version.* not read launch.of_another_time"):
        stored_config({"launch": {"timeout_s": 5.0, "of_another_time": 3}})
