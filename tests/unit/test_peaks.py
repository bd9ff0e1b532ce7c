"""The table of peaks: sourced, consistent, and what every shipped file and the docs declare."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcbench.config.load import read_config
from hpcbench.config.presets import HARDWARE
from hpcbench.config.presets.preset import filled, load_preset
from hpcbench.operations.peaks import DEVICES, LINKS, DevicePeaks, Document
from launcher import ROOT

DOC = (ROOT / "docs/hardware.md").read_text(encoding="utf-8")
PRESETS = {"v100-nvlink": ("V100 SXM2", "nvlink2"), "a100-nvlink": ("A100 SXM", "nvlink3"),
           "h100-nvlink": ("H100 SXM", "nvlink4"), "h200-nvlink": ("H200 SXM", "nvlink4"),
           "b200-nvlink": ("B200 HGX", "nvlink5"),
           "a10-cluster": ("A10", "pcie4")}
JOBS = {"slurm/v100_nvlink.json": "v100-nvlink", "jobs/transformer_large_v100.yaml": "v100-nvlink",
        "jobs/resnet50_bert_gpt2_scaling.yaml": "a100-nvlink",
        "slurm/h100_nvlink.json": "h100-nvlink", "slurm/b200_nvlink.json": "b200-nvlink",
        "slurm/a10_cluster.json": "a10-cluster",
        "jobs/mistral7b_qlora.yaml": "a10-cluster"}
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
