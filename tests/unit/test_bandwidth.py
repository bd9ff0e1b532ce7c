"""Bandwidths against nccl-tests' definitions, and the table of peaks: sourced and consistent."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.config.load import read_config
from hpcbench.config.presets import HARDWARE
from hpcbench.config.presets.preset import filled, load_preset
from hpcbench.kinds.collective.derive import bandwidth
from hpcbench.operations.collectives import busbw_factor
from hpcbench.operations.peaks import DEVICES, LINKS, DevicePeaks, Document
from launcher import ROOT
from results_factory import make_workload

GIB = 2**30
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
ONE_WAY = ("broadcast", "reduce", "send_recv")
# S = 1 GiB, t = 1 ms: n, all_reduce, the shared factor (n-1)/n; GB/s.
TABLE = [
    (1, 0.0, 0.0), (2, 1073.7418, 536.8709), (4, 1610.6127, 805.3064), (8, 1879.0482, 939.5241),
    (64, 2113.9292, 1056.9646), (72, 2117.6575, 1058.8287),
]


def gb_per_s(collective: str, n: int, time_s: float = 1e-3) -> tuple[float, float]:
    rates = bandwidth(make_workload(collective, GIB, world_size=n), n, time_s)
    return rates.algbw_bytes_per_s / 1e9, rates.busbw_bytes_per_s / 1e9


@pytest.mark.parametrize(("n", "all_reduce", "shared"), TABLE)
def test_worked_numbers(n: int, all_reduce: float, shared: float) -> None:
    assert gb_per_s("all_reduce", n) == pytest.approx((1073.7418, all_reduce), abs=5e-5)
    for collective in SHARED:
        assert gb_per_s(collective, n) == pytest.approx((1073.7418, shared), abs=5e-5)


@pytest.mark.parametrize("collective", ONE_WAY)
def test_one_way_collectives_count_once(collective: str) -> None:
    assert gb_per_s(collective, 8) == pytest.approx((1073.7418, 1073.7418), abs=5e-5)
    assert gb_per_s(collective, 1)[1] == 0.0


@pytest.mark.parametrize(("ranks", "groups", "busbw"), [(8, 1, 1.75), (8, 2, 1.5), (8, 4, 1.0)])
def test_of_several_groups_the_rate_is_that_of_one(ranks: int, groups: int, busbw: float) -> None:
    rates = bandwidth(replace(make_workload("all_reduce", GIB), groups=groups), ranks, 1.0)
    assert (rates.algbw_bytes_per_s, rates.busbw_bytes_per_s) == (GIB, busbw * GIB)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_uneven_parts_have_the_factor_of_even_ones(collective: str) -> None:
    work = replace(make_workload(collective, GIB), split="linear")
    rates = bandwidth(work, 4, 1.0)
    assert rates is not None and rates.busbw_bytes_per_s == 0.75 * GIB


def test_barrier_has_a_time_only() -> None:
    assert busbw_factor("barrier", 4) is None
    assert bandwidth(make_workload("barrier"), 4, 1e-5) is None


@pytest.mark.parametrize("time_s", [0.0, -1e-6, math.nan])
def test_a_time_that_is_not_positive_never_divides(time_s: float) -> None:
    assert bandwidth(make_workload(), 4, time_s) is None


def test_a_collective_that_is_not_installed_has_no_factor() -> None:
    assert busbw_factor("vanished", 4) is None


@given(
    collective=st.sampled_from(("all_reduce", *SHARED, *ONE_WAY)),
    n=st.integers(1, 10_000), size=st.integers(0, 2**45), time_s=st.floats(1e-9, 1e6),
)
def test_rates_are_finite_and_bounded(collective: str, n: int, size: int, time_s: float) -> None:
    rates = bandwidth(make_workload(collective, size, world_size=n), n, time_s)
    assert 0 <= rates.busbw_bytes_per_s <= 2 * rates.algbw_bytes_per_s < math.inf


DOC = (ROOT / "docs/hardware.md").read_text(encoding="utf-8")
PRESETS = {"v100-nvlink": ("V100 SXM2", "nvlink2"), "a100-nvlink": ("A100 SXM", "nvlink3"),
           "h100-nvlink": ("H100 SXM", "nvlink4"), "h200-nvlink": ("H200 SXM", "nvlink4"),
           "b200-nvlink": ("B200 HGX", "nvlink5"),
           "a10-cluster": ("A10", "pcie4")}
JOBS = {"slurm/v100_nvlink.json": "v100-nvlink", "jobs/transformer_large_v100.yaml": "v100-nvlink",
        "jobs/resnet50_bert_gpt2_scaling.yaml": "a100-nvlink",
        "slurm/h100_nvlink.json": "h100-nvlink", "slurm/b200_nvlink.json": "b200-nvlink",
        "slurm/a10_cluster.json": "a10-cluster",
        "jobs/long_context.yaml": "h100-nvlink", "jobs/mistral7b_qlora.yaml": "a10-cluster"}
OF_A_DIRECTION = {  # typed in from the documents a second time: GB/s
    "nvlink2": 6 * 25, "nvlink3": 12 * 25, "nvlink4": 18 * 25, "nvlink5": 18 * 50,
    "pcie3": 32 / 2, "pcie4": 64 / 2, "pcie5": 128 / 2, "pcie6": 256 / 2,
    "10gbe": 1.25, "25gbe": 3.125, "40gbe": 5, "50gbe": 6.25, "100gbe": 12.5, "200gbe": 25,
    "400gbe": 50, "800gbe": 100, "hdr": 25, "ndr": 50}
BF16 = {"A10": 250 / 2, "A100 SXM": 624 / 2, "H100 SXM": 1978.9 / 2, "H200 SXM": 1979 / 2,
        "B200 HGX": 4500 / 2}
"""Half of what the documents state with sparsity, in TFLOP/s."""


def documents() -> Iterator[Document]:
    for device in DEVICES.values():
        yield device.document
        yield from filter(None, [device.memory_document])
    yield from (link.document for link in LINKS.values())


def test_each_number_has_a_document() -> None:
    for document in documents():
        assert document.title and re.search(r"\d{4}|undated", document.date)
        assert document.url.startswith("https://") and " " not in document.url


def test_links_are_of_one_direction() -> None:
    assert {name: link.gb_per_s for name, link in LINKS.items()} == OF_A_DIRECTION


def test_devices_are_dense() -> None:
    bf16 = {name: device.flops["bf16"] / 1e12 for name, device in DEVICES.items()
            if "bf16" in device.flops}
    assert bf16 == pytest.approx(BF16, rel=1e-4)


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_narrower_types_are_faster(device: DevicePeaks) -> None:
    """Of tensor cores bf16 and fp16 are equal, tf32 is about half of them, and 8 bits twice."""
    flops = device.flops
    assert flops["fp16"] == flops.get("bf16", flops["fp16"])
    for name, factor in (("tf32", 0.5), ("fp8", 2), ("int8", 2)):
        assert flops.get(name, factor * flops["fp16"]) == pytest.approx(
            factor * flops["fp16"], rel=0.03)
    assert len(device.memory_gb) == len(device.memory_gb_per_s)


def test_presets_take_their_numbers_from_the_table() -> None:
    assert set(PRESETS) == {name for name in HARDWARE
                            if load_preset(name).content["hardware"].get("peak_flops")}
    for name, (device, link) in PRESETS.items():
        hardware, known = load_preset(name).content["hardware"], DEVICES[device]
        assert hardware["peak_flops"].items() <= dict(known.flops).items()
        assert list(hardware["link_peaks"].values()) == [LINKS[link].gb_per_s]
        assert hardware["memory_per_device_gb"] == min(known.memory_gb)
        assert hardware["memory_bandwidth_gb_per_s"] == min(known.memory_gb_per_s)
    with pytest.raises(KeyError):
        filled("link_peaks: {nvlink: $(nvlink9)}")


@pytest.mark.parametrize(("file", "preset"), JOBS.items())
def test_job_files_have_the_numbers_of_the_table(file: str, preset: str) -> None:
    hardware, (device, link) = read_config(ROOT / file)["hardware"], PRESETS[preset]
    assert hardware["peak_flops"].items() <= dict(DEVICES[device].flops).items()
    assert set(hardware.get("link_peaks", {}).values()) <= {LINKS[link].gb_per_s}
    assert hardware["memory_per_device_gb"] in DEVICES[device].memory_gb


def test_all_files_with_peaks_are_compared() -> None:
    files = [*(ROOT / "slurm").glob("*.json"), *(ROOT / "jobs").glob("*.yaml")]
    assert {str(path.relative_to(ROOT)) for path in files if has_peaks(path)} == set(JOBS)


def has_peaks(path: Path) -> bool:
    return bool(read_config(path).get("hardware", {}).get("peak_flops"))


def link_rows() -> Iterator[str]:
    links = ", ".join(f"`{name}` {link.gb_per_s:g}" for name, link in LINKS.items())
    yield from textwrap.wrap(links, 110)


def test_the_page_has_the_links() -> None:
    """Where this fails, what it expects is what belongs between the markers of the page."""
    found = re.search(r"<!-- links -->\n(.*?)\n<!-- /links -->", DOC, re.DOTALL)
    assert found
    assert found[1] == "\n".join(link_rows())


def test_the_page_names_every_device() -> None:
    page = " ".join(DOC.split())
    assert not [name for name in DEVICES if name not in page]
