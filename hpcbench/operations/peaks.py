"""Peaks of devices and links as their documents state them: the only source of such numbers.

``hpcbench gen-config``'s machines, the files in ``slurm/`` and ``jobs/`` and docs/hardware.md
declare what stands here; tests/unit/test_bandwidth.py compares them. A peak of a device is of dense
matrices: where a document states a number with structured sparsity, half of it stands here. A peak
of a link is of one direction: where a document adds both directions, half of it stands here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.records import dataclass

TERA = 1e12


@dataclass(frozen=True, slots=True)
class Document:
    """Where a number stands: publisher, title and number; the year or ``undated``; an address."""

    title: str
    date: str
    url: str


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """The peaks of a device.

    Attributes:
        flops: element type -> FLOP/s of dense matrices (operations/s of int8), by tensor cores
            where they have the type. ``fp8`` stands for both of its formats.
        memory_gb: GB (1e9 B) of memory, one number a variant.
        memory_gb_per_s: GB/s of its memory, reads and writes together; one number a variant.
        document: where the numbers stand.
        memory_document: where those of memory stand, if elsewhere.
        note: how the numbers follow from the document's, where they are not simply there."""

    flops: Mapping[str, float]
    memory_gb: tuple[float, ...]
    memory_gb_per_s: tuple[float, ...]
    document: Document
    memory_document: Document | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class LinkPeak:
    """GB/s (1e9 B/s) of a link in one direction, as its document rates it.

    Attributes:
        gb_per_s: of all links of a device, or of one port of an adapter.
        document: where the number stands.
        note: how it follows from the document's number.
        of_network: whether it connects nodes, and not devices of a node."""

    gb_per_s: float
    document: Document
    note: str = ""
    of_network: bool = False


def _nvidia(title: str, date: str, path: str) -> Document:
    return Document(f"NVIDIA {title}", date, f"https://{path}")


_CONTENT = "www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_RESOURCES = "resources.nvidia.com/en-us-tensor-core"
_V100 = _nvidia("V100 Tensor Core GPU, data sheet 1165301-r5", "2020",
                "images.nvidia.com/content/technologies/volta/pdf/"
                "volta-v100-datasheet-update-us-1165301-r5.pdf")
_A100 = _nvidia("A100 Tensor Core GPU, data sheet 1758950-r4", "2021",
                f"{_CONTENT}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf")
_A10 = _nvidia("A10 Tensor Core GPU, data sheet", "2021", f"{_CONTENT}/a10/pdf/a10-datasheet.pdf")
_H100_PAPER = _nvidia("H100 Tensor Core GPU Architecture, white paper", "2022",
                      f"{_RESOURCES}/gtc22-whitepaper-hopper")
_H100 = _nvidia("H100 Tensor Core GPU, data sheet", "2023",
                f"{_RESOURCES}/nvidia-tensor-core-gpu-datasheet")
_H200 = _nvidia("H200 Tensor Core GPU, data sheet 3002446", "2024",
                "nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446")
_B200 = _nvidia("Blackwell, data sheet 3384703", "2025",
                "nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703")
_PCI_SIG = Document("PCI-SIG, PCI Express specifications", "2010 to 2022",
                    "https://pcisig.com/specifications")
_INFINIBAND = _nvidia("DGX SuperPOD cabling guide, NDR overview", "undated",
                      "docs.nvidia.com/dgx-superpod/design-guide-cabling-data-centers/latest/"
                      "ndr-overview.html")


def _tera(**rates: float) -> Mapping[str, float]:
    """Return operations/s, each the number that one types for it: 66.9 x 1e12 is not 66.9e12."""
    return MappingProxyType({dtype: float(f"{rate}e12") for dtype, rate in rates.items()})


DEVICES: Mapping[str, DevicePeaks] = MappingProxyType({
    "V100 SXM2": DevicePeaks(
        _tera(fp64=7.8, fp32=15.7, fp16=125), (16, 32), (900, 900), _V100,
        note="Volta has no sparsity, TF32 or bf16"),
    "A10": DevicePeaks(
        _tera(fp32=31.2, tf32=62.5, bf16=125, fp16=125, int8=250), (24,), (600,), _A10,
        note="the numbers without sparsity; it has none for fp64; an A10G is another GPU"),
    "A100 SXM": DevicePeaks(
        _tera(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624), (40, 80),
        (1555, 2039), _A100, note="the numbers without sparsity; fp64 is of tensor cores"),
    "H100 SXM": DevicePeaks(
        _tera(fp64=66.9, fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9),
        (80,), (3350,), _H100_PAPER, _H100,
        "the numbers without sparsity; fp64 is of tensor cores"),
    "H200 SXM": DevicePeaks(
        _tera(fp64=67, fp32=67, tf32=989 / 2, bf16=1979 / 2, fp16=1979 / 2, fp8=3958 / 2,
              int8=3958 / 2),
        (141,), (4800,), _H200,
        note="half of the numbers with sparsity; fp64 is of tensor cores"),
    "B200 HGX": DevicePeaks(
        _tera(fp64=37, fp32=75, tf32=2200 / 2, bf16=4500 / 2, fp16=4500 / 2, fp8=9000 / 2,
              int8=9000 / 2),
        (180,), (7700,), _B200,
        note="of one GPU of HGX B200; half of the numbers with sparsity; fp64 is of tensor cores. "
        "Earlier documents say 40 (fp64), 80 (fp32) and 8 TB/s"),
})
"""Device -> its peaks. For other devices nothing is known or guessed."""


def _both(total: float, document: Document) -> LinkPeak:
    return LinkPeak(total / 2, document, f"half of {total:g} GB/s, which are of both directions")


def _lanes(transfers: float) -> LinkPeak:
    return LinkPeak(transfers * 16 / 8, _PCI_SIG, f"16 lanes x {transfers:g} GT/s / 8 bit, before "
                    "the code of the line and headers")


def _ethernet(gbit: float, amendment: str, year: int) -> LinkPeak:
    document = Document(f"IEEE Std 802.3{amendment}-{year}, Ethernet", str(year),
                        f"https://www.ieee802.org/3/{amendment}/")
    return LinkPeak(gbit / 8, document, f"{gbit:g} Gbit/s of frames, with their headers",
                    of_network=True)


def _infiniband(gbit: float) -> LinkPeak:
    return LinkPeak(gbit / 8, _INFINIBAND, f"4 lanes of {gbit / 4:g} Gbit/s", of_network=True)


LINKS: Mapping[str, LinkPeak] = MappingProxyType({
    "nvlink2": _both(300, _V100), "nvlink3": _both(600, _A100), "nvlink4": _both(900, _H100),
    "nvlink5": _both(1800, _B200),
    "pcie3": _lanes(8), "pcie4": _lanes(16), "pcie5": _lanes(32), "pcie6": _lanes(64),
    "10gbe": _ethernet(10, "ae", 2002), "25gbe": _ethernet(25, "by", 2016),
    "40gbe": _ethernet(40, "ba", 2010), "50gbe": _ethernet(50, "cd", 2018),
    "100gbe": _ethernet(100, "ba", 2010), "200gbe": _ethernet(200, "bs", 2017),
    "400gbe": _ethernet(400, "bs", 2017), "800gbe": _ethernet(800, "df", 2024),
    "hdr": _infiniband(200), "ndr": _infiniband(400),
})
"""Link -> its peak. NVLink: all links of one GPU; PCIe: 16 lanes; InfiniBand: 4 lanes."""


def known_link(name: str | None) -> LinkPeak | None:
    """Return the link of that name; None for a name, such as ``nvlink``, that is of no one link."""
    return LINKS.get((name or "").lower())
