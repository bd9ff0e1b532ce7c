"""What a sweep declares of its hardware: each key is used, and says what it is for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from figure_texts import first_figure, texts_of
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.plan.expand import make_plan
from hpcbench.report.console import print_results
from hpcbench.report.summary import write_summary
from hpcbench.texts import Verbosity
from hpcbench.views.table import declared_links
from results_factory import make_case, make_results, ok

LINKS = {"interconnect": "infiniband", "link_peaks": {"nvlink": 450.0},
         "network_bandwidth_gbps": 400.0}
DECLARED = "declared: interconnect infiniband, nvlink 450 GB/s, network 400 Gbit/s a node"


def estimate_s(ranks: int, **hardware: Any) -> float:
    (case,) = make_plan(check_config({"hardware": hardware, "benchmarks": [{
        "kind": "collective", "collective": "all_reduce", "backend": "nccl", "device": "cuda",
        "size": "1GiB"}]}, "test"), ranks).cases
    return case.estimate_s


@pytest.mark.parametrize(("hardware", "text"), [
    (LINKS, DECLARED), ({"interconnect": "pcie"}, "declared: interconnect pcie"), ({}, ""),
    ({"interconnect": None, "link_peaks": {}, "network_bandwidth_gbps": None}, "")])
def test_declared_links_in_words(hardware: dict[str, Any], text: str) -> None:
    assert declared_links({"hardware": hardware}) == text


def test_links_are_shown_beside_bandwidths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    results = make_results((ok(make_case()),))
    print_results(results, tmp_path, Verbosity.VERBOSE)
    assert "declared:" not in capsys.readouterr().out
    results = replace(results, plan=replace(results.plan, config={"hardware": LINKS}))
    print_results(results, tmp_path, Verbosity.VERBOSE)
    assert DECLARED in capsys.readouterr().out
    assert DECLARED in texts_of(first_figure(results)).replace("\n", " ")
    write_summary(results, tmp_path)
    document = json.loads((tmp_path / "summary.json").read_text())
    assert document["config"]["interconnect"] == "infiniband"


def test_the_network_is_not_for_ranks_of_one_node() -> None:
    slow = {"network_bandwidth_gbps": 1}
    assumed = estimate_s(8)
    assert estimate_s(8, **slow) > 10 * assumed
    assert estimate_s(8, **slow, num_devices=8) == assumed
    assert estimate_s(16, **slow, num_devices=8) == estimate_s(16, **slow)


def test_a_key_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="interconect.*interconnect"):
        check_config({"hardware": {"interconect": "nvlink"}, "benchmarks": [{
            "kind": "collective", "collective": "barrier"}]}, "test")
    with pytest.raises(ConfigError, match="price_per_device_hour"):
        check_config({"hardware": {"price_per_device_hour": -1}, "benchmarks": [{
            "kind": "collective", "collective": "barrier"}]}, "test")
