"""The packages of folder ``plugins``: built, installed beside hpcbench, listed and planned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcbench.backends.availability import tool_facts
from hpcbench.config.load import check_config, load_config
from hpcbench.kinds.primitive.plan.implementations import ELSEWHERE, PACKAGES, load_registry
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan
from launcher import ROOT
from packages import install

FOLDER = ROOT / "plugins"
DDLB: dict[str, Any] = {"m": 512, "n": 256, "k": 128, "dtype": "float16", "implementations": {
    "pytorch": [{}], "transformer_engine": [{}], "jax": [{}],
    "fuser": [{"algorithm": ["default"], "backend": ["nccl", "cuda"]},
              {"algorithm": ["coll_pipeline"], "s": [2, 4], "backend": ["ucc/tl/nccl"]},
              {"algorithm": ["p2p_pipeline"], "backend": ["cuda"],
               "offset_stream_indexing_by_rank": [True, False],
               "multicast_protocol": ["memcpy", "multimem"]}]}}
"""What sweep files of DDLB have of these implementations."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a folder for Python's path for each package, built as users build it."""
    return [install(source, tmp_path_factory.mktemp(source.name))
            for source in sorted(FOLDER.glob("hpcbench-*"))]


@pytest.fixture
def installed(targets: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for target in targets:
        monkeypatch.syspath_prepend(target)


def ddlb(folder: Path, primitive: str) -> Plan:
    path = folder / "ddlb.json"
    path.write_text(json.dumps({"benchmark": {"primitive": primitive, **DDLB}}))
    return make_plan(load_config(path), 4)


def plan_of(implementations: Mapping[str, Any], **keys: object) -> tuple[Case, ...]:
    block = {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 32, "k": 16,
             "backend": "nccl", "dtype": "bf16", "implementations": implementations, **keys}
    return make_plan(check_config({"benchmarks": [block]}, "c.json"), 4).cases


def fuser_variables(plan: Plan) -> set[str]:
    """Return the values of NVFUSER_ENABLE of all fuser's cases; empty where it is not set."""
    return {dict(case.env).get("NVFUSER_ENABLE", "") for case in plan.cases
            if primitive_of(case).implementation == "fuser"}


@pytest.mark.usefixtures("installed")
def test_they_offer_what_the_reasons_promise_with_the_options_of_ddlb() -> None:
    registry = load_registry()
    origins = {plugin.origin: plugin.problem for plugin in registry.plugins}
    assert {f"{package} 0.1" for package in PACKAGES.values()} <= set(origins)
    assert set(origins.values()) == {""}
    for name, primitive in PACKAGES:
        spec = registry.implementation(name, primitive)
        assert spec is not None and "never run" in spec.meaning
        assert dict(spec.options) == dict(ELSEWHERE[name])


@pytest.mark.usefixtures("installed")
def test_files_of_ddlb_are_planned_whole(tmp_path: Path) -> None:
    plan = ddlb(tmp_path, "tp_columnwise")
    assert [case.skip for case in plan.cases] == [None] * 11
    assert {primitive_of(case).option("weight") for case in plan.cases} == {"replicated"}
    assert fuser_variables(plan) == {"", "multicast_protocol(memcpy)",
                                     "multicast_protocol(multimem)"}
    plan = ddlb(tmp_path, "tp_rowwise")
    assert [case.skip for case in plan.cases] == [None] * 11
    assert fuser_variables(plan) == {"insert_resharding_after"} | {
        f"insert_resharding_after,multicast_protocol({name})" for name in ("memcpy", "multimem")}
    needs = {primitive_of(case).implementation: case.needs for case in plan.cases}
    assert needs["jax"] == ("nccl", "cuda", "jax")
    assert needs["transformer_engine"] == ("nccl", "cuda", "transformer_engine")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("implementations", "keys", "skip"), [
    ({"transformer_engine": {}}, {"dtype": "fp32"}, "multiplies fp32 in TF32"),
    ({"transformer_engine": {}}, {"dtype": "fp64"}, "multiplies no fp64"),
    ({"transformer_engine": {}}, {"backend": "gloo"}, "runs on cuda only, not on cpu"),
    ({"transformer_engine": {}}, {"backend": "ucc/tl/nccl"}, "runs with nccl only, not with ucc"),
    ({"transformer_engine": {"order": "AG_after"}}, {}, "no order AG_after of tp_columnwise"),
    ({"transformer_engine": {}}, {"world_size": 1}, "userbuffers connect at least 2 ranks"),
    ({"jax": {}}, {"backend": "mpi"}, "jax runs with gloo or nccl only, not with mpi"),
    ({"jax": {}}, {"primitive": "tp_mlp"}, "no jax of tp_mlp: nobody has written it"),
    ({"fuser": {"algorithm": "coll_pipeline", "s": 3}}, {}, "16 rows of a rank cannot be cut into"),
    ({"fuser": {"algorithm": "p2p_pipeline", "order": "AG_after"}}, {}, "has algorithm default on"),
    ({"fuser": {}}, {"primitive": "tp_rowwise", "order": "AR_after"}, "has no order AR_after"),
])
def test_what_does_not_suit_them_is_a_skip(
    implementations: Mapping[str, Any], keys: dict[str, object], skip: str,
) -> None:
    (case,) = plan_of(implementations, **keys)
    assert case.skip and skip in case.skip


def test_a_missing_library_is_named_with_what_to_install() -> None:
    told = tool_facts(["transformer_engine", "nvfuser_direct"])
    assert told["transformer_engine"] == (
        "the Python module transformer_engine is not installed: "
        "pip install transformer-engine[pytorch]")
    assert "pip install nvfuser-cuXXX-torchYY" in told["nvfuser_direct"]
