"""The sweeps that gen-config writes: each loads, plans without skips, and has sourced numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.load import check_config, read_config
from hpcbench.config.presets import HARDWARE
from hpcbench.config.presets.preset import Preset, load_preset
from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import plan_estimate_s
from launcher import ROOT

RANKS = {"cpu": (2, 4), "v100-nvlink": (8,), "a100-nvlink": (8,), "h100-nvlink": (8,),
         "h200-nvlink": (8,), "b200-nvlink": (8,), "a10-cluster": (4,), "m4-metal": (1,)}
"""Numbers of ranks that each machine is used with: of GPUs all of a node, or one a node."""
PLANNED = [(name, ranks) for name, several in RANKS.items() for ranks in several]
LEFT_OUT = {("m4-metal", "collective"): "Collectives are left out, since"}
"""Kinds that a file has no block of, with its reason. A new kind needs a block in each file."""
TERA = 1e12
PEAKS: dict[str, dict[str, dict[str, float]]] = {
    # vendors' data sheets, dense; typed in from there a second time
    "v100-nvlink": {"peak_flops": {"fp16": 125, "fp32": 15.7, "fp64": 7.8},
                    "link_peaks": {"nvlink": 300 / 2}},
    "a100-nvlink": {"peak_flops": {"bf16": 624 / 2, "fp16": 624 / 2, "fp32": 19.5, "fp64": 19.5},
                    "link_peaks": {"nvlink": 600 / 2}},
    "h100-nvlink": {"peak_flops": {"bf16": 989.4, "fp16": 989.4, "fp32": 66.9, "fp64": 66.9,
                                   "tf32": 494.7, "fp8": 1978.9, "int8": 1978.9},
                    "link_peaks": {"nvlink": 900 / 2}},
    "h200-nvlink": {"peak_flops": {"bf16": 1979 / 2, "fp16": 1979 / 2, "fp32": 67, "fp64": 67,
                                   "tf32": 989 / 2, "fp8": 3958 / 2, "int8": 3958 / 2},
                    "link_peaks": {"nvlink": 900 / 2}},
    "b200-nvlink": {"peak_flops": {"bf16": 4500 / 2, "fp16": 4500 / 2, "fp32": 75, "fp64": 37,
                                   "tf32": 2200 / 2, "fp8": 9000 / 2, "int8": 9000 / 2},
                    "link_peaks": {"nvlink": 1800 / 2}},
    "a10-cluster": {"peak_flops": {"bf16": 250 / 2, "fp16": 250 / 2, "fp32": 31.2},
                    "link_peaks": {"pcie": 64 / 2}},
    "cpu": {}, "m4-metal": {},
}
JOBS = {"slurm/v100_nvlink.json": "v100-nvlink", "jobs/transformer_large_v100.yaml": "v100-nvlink",
        "jobs/resnet50_bert_gpt2_scaling.yaml": "a100-nvlink",
        "slurm/h100_nvlink.json": "h100-nvlink", "slurm/b200_nvlink.json": "b200-nvlink",
        "slurm/a10_cluster.json": "a10-cluster",
        "jobs/mistral7b_qlora.yaml": "a10-cluster", "slurm/cpu.json": "cpu"}
OF_THE_SITE = {"num_devices", "network_bandwidth_gbps"}
"""Not of the GPU but of the nodes that a job is for."""


@pytest.fixture(params=HARDWARE)
def preset(request: pytest.FixtureRequest) -> Preset:
    return load_preset(request.param)


def plan_of(preset: Preset, ranks: int) -> Plan:
    return make_plan(check_config(preset.content, preset.name), ranks)


def test_each_name_has_a_file_and_each_file_a_name() -> None:
    files = (ROOT / "hpcbench/config/presets").glob("*.yaml")
    assert {file.stem for file in files} == set(HARDWARE) == set(RANKS)


@pytest.mark.parametrize(("name", "ranks"), PLANNED)
def test_each_plans_without_skips(name: str, ranks: int) -> None:
    preset = load_preset(name)
    plan = plan_of(preset, ranks)
    limit = preset.content["hardware"].get("memory_per_device_gb")
    assert [case.label for case in plan.cases if case.skip] == []
    assert plan.duplicates == 0
    assert all(case.estimate_s < case.timeout_s for case in plan.cases)
    assert limit is None or max(case.memory_bytes for case in plan.cases) < 0.8 * limit * 1e9


@pytest.mark.parametrize(("name", "ranks"), PLANNED)
def test_the_head_states_what_is_planned(name: str, ranks: int) -> None:
    preset = load_preset(name)
    plan = plan_of(preset, ranks)
    total_s = plan_estimate_s(plan)
    largest = max(case.memory_bytes for case in plan.cases) / 1e9
    assert (f"# Planned for {ranks} rank{'s' if ranks > 1 else ''}: {len(plan.cases)} cases, about "
            f"{max(1, round(total_s / 60))} min by assumed rates, at most {largest:.1f} GB a rank."
            ) in preset.text


@pytest.mark.parametrize("name", [*JOBS, *HARDWARE])
def test_what_is_for_gpus_requires_them(name: str) -> None:
    """A cluster's job that finds no GPU must not end as if all were well."""
    content = read_config(ROOT / name) if name in JOBS else load_preset(name).content
    device = content.get("hardware", {}).get("device_type", "cpu")
    assert content.get("required_backends") == (device if device != "cpu" else None)


def test_each_has_every_kind(preset: Preset) -> None:
    given = {block["kind"] for block in preset.content["benchmarks"]}
    missing = {kind for kind, spec in kinds().items() if not spec.is_plugin} - given
    missing -= {"function", "replay"}  # need a file of the user's own
    for kind in missing:
        assert LEFT_OUT.get((preset.name, kind), "no block") in preset.text


def test_primitives_have_their_bounds(preset: Preset) -> None:
    cases = [case for ranks in RANKS[preset.name] for case in plan_of(preset, ranks).cases
             if case.kind == "primitive"]
    names = {case.label.split()[1] for case in cases}
    assert names >= ({"compute_only"} if preset.name == "m4-metal" else
                     {"compute_only", "comm_only", "torch"})


def test_peaks_are_those_of_the_data_sheets(preset: Preset) -> None:
    hardware, known = preset.content["hardware"], PEAKS[preset.name]
    assert hardware.get("link_peaks", {}) == known.get("link_peaks", {})
    assert hardware.get("peak_flops", {}) == pytest.approx(
        {dtype: peak * TERA for dtype, peak in known.get("peak_flops", {}).items()}, rel=1e-12)


def test_each_number_states_where_it_comes_from(preset: Preset) -> None:
    hardware, sources = preset.content["hardware"], preset.sources
    for key in {"peak_flops", "link_peaks", "memory_per_device_gb"} & set(hardware):
        assert re.search("data sheet|white paper", sources[key]), key
        assert "dense" in sources[key] or "no sparsity" in sources[key] or key != "peak_flops"
    told = " ".join(sources.values())
    for key in {"peak_flops", "memory_per_device_gb", "network_bandwidth_gbps"} - set(hardware):
        if hardware["device_type"] == "cuda" or key == "peak_flops":
            assert f"{key} is left out" in told, key


def test_each_names_its_schema_and_fits_a_line(preset: Preset) -> None:
    first, *lines = preset.text.splitlines()
    assert first == "# yaml-language-server: $schema=config.schema.json"
    assert max(map(len, lines)) <= 100
    assert preset.content["name"] == preset.name
    assert preset.about.endswith(".")


@pytest.mark.parametrize(("file", "name"), JOBS.items())
def test_job_files_of_the_same_hardware_have_the_same_numbers(file: str, name: str) -> None:
    hardware = read_config(ROOT / file).get("hardware", {})
    known = load_preset(name).content["hardware"]
    for key in set(hardware) - OF_THE_SITE:
        assert contained(hardware[key], known[key]), key


def contained(some: Any, all_: Any) -> bool:
    return some == all_ or isinstance(some, dict) and some.items() <= all_.items()


@pytest.mark.parametrize("path", sorted((ROOT / "slurm").glob("*.json")), ids=lambda at: at.stem)
def test_slurms_files_declare_sourced_peaks_of_all_that_computes(path: Path) -> None:
    """So no MFU is null for want of a peak. A CPU's peak has no source, as the file's notes say."""
    content = read_config(path)
    config, notes = check_config(content, path.name), " ".join(content.get("notes", ()))
    computing = {case.workload.dtype for case in make_plan(config, 8).cases
                 if case.kind != "collective"}
    if config.hardware.device_type == "cuda":
        assert computing and computing <= set(config.hardware.peak_flops)
        assert config.hardware.link_peaks and re.search("data sheet|white paper", notes)
    else:
        assert not config.hardware.peak_flops
        assert not computing or "peak_flops is left out" in notes
        assert "training" not in {block["kind"] for block in content["benchmarks"]}


def test_every_job_file_is_compared() -> None:
    given = {path.relative_to(ROOT).as_posix() for path in (
        *(ROOT / "slurm").glob("*.json"), *(ROOT / "jobs").glob("*.yaml"))
        if "hardware" in read_config(path)}
    unlike = {"jobs/bluefield_ucc.yaml"}  # a network card, on machines of any kind
    assert given - unlike <= set(JOBS)


def test_the_package_has_the_files() -> None:
    text = Path(ROOT / "setup.cfg").read_text()
    assert "hpcbench.config.presets = *.yaml" in text
    assert json.dumps(load_preset("cpu").content)
