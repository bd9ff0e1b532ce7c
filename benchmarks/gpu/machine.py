"""What the machine has: its GPUs, the versions that figures depend on, and what is declared."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu.needs import ask, last_line
from hpcbench.measurement.process import KernelFiles, usable_cores
from hpcbench.operations.peaks import DEVICES, LINKS
from hpcbench.trace.schema import UNKNOWN_VERSION

_FACTS = """
import json
from hpcbench.measurement.process import no_collection_of_modules
with no_collection_of_modules():
    from hpcbench.backends.facts import gather_facts
    facts = gather_facts(())
print(json.dumps({name: facts[name] for name in ("cuda", "versions", "lost")}))
"""
"""To collect garbage among the modules of torch takes a third of this process's time."""
_DECLARED = (
    (r"NVIDIA B200", "B200 HGX", "nvlink", "nvlink5"),
    (r"NVIDIA H200", "H200 SXM", "nvlink", "nvlink4"),
    (r"NVIDIA H100 80GB HBM3", "H100 SXM", "nvlink", "nvlink4"),
    (r"(NVIDIA )?A100-SXM4-[48]0GB", "A100 SXM", "nvlink", "nvlink3"),
    (r"(NVIDIA |Tesla )?V100-SXM2-(16|32)GB", "V100 SXM2", "nvlink", "nvlink2"),
    (r"(NVIDIA )?A10", "A10", "pcie", "pcie4"))
"""Whole name of a GPU -> its row of `operations.peaks`, its link, and the row of that.

Any other name, of another form (PCIe, NVL), of a part (MIG, vGPU) or of a maker's own variant, has
no row: its peak is another.
"""
_PATIENCE_S = 180.0
"""For the driver to answer: a GPU that hangs must not stop the session for ever."""


@dataclass(frozen=True)
class Machine:
    """The GPUs that torch sees, and why there is none; MIG devices by their UUIDs.

    ``broken`` is why the machine could not be asked: then nothing is known of its GPUs.
    """

    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    details: tuple[Any, ...] = ()
    mig: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    why_none: str = ""
    broken: str = ""
    cores: int = field(default_factory=lambda: usable_cores(KernelFiles()))

    @property
    def gpus(self) -> int:
        """Return how many GPUs there are."""
        return len(self.names)

    def identity(self) -> list[Any]:
        """Return what a step must be run again for when it changes."""
        return [self.names, self.uuids, self.mig, dict(sorted(self.versions.items()))]

    def hardware(self) -> dict[str, Any]:
        """Return the section ``hardware`` of a sweep: what the vendor declares for this GPU.

        Memory is left out: the probe asks torch for it.
        """
        name = self.names[0] if self.names else ""
        known = next((row for pattern, *row in _DECLARED if re.fullmatch(pattern, name)), None)
        if known is None or len(set(self.names)) > 1:
            return {}
        device, link, row = known
        return {"device_type": "cuda", "num_devices": self.gpus,
                "peak_flops": dict(DEVICES[device].flops),
                "link_peaks": {link: LINKS[row].gb_per_s} if self.gpus > 1 else {}}


def look(
    command: Sequence[str] = (sys.executable, "-c", _FACTS), patience_s: float = _PATIENCE_S,
) -> Machine:
    """Ask torch in a process of its own: this one touches no device, and outlives a crash."""
    answer = ask(command, patience_s)
    if answer.code is None:
        return Machine(broken=(
            f"torch, or the driver, did not answer within {patience_s:g} s: see whether nvidia-smi "
            "answers, and dmesg for lines with Xid; a GPU that hangs needs a reset or a reboot"))
    if answer.code:
        return Machine(broken=(
            f"the probe of this machine failed, {answer.ending}: {last_line(answer.stderr)}; see "
            f"whether nvidia-smi and {sys.executable} -c 'import torch; torch.cuda.init()' work"))
    facts = json.loads(answer.stdout.splitlines()[-1])
    cuda, versions, lost = facts["cuda"], facts["versions"], facts["lost"]
    if "cuda" in lost:
        return Machine(broken=lost["cuda"])
    mig = _mig_devices() if cuda["available"] else ()
    return Machine(tuple(cuda["names"]), tuple(cuda["uuids"]), tuple(cuda["memory_bytes"]),
                   tuple(cuda["details"]), mig, versions,
                   without_gpus(cuda["reason"], versions, lost.get("nvml", "")))


def without_gpus(reason: str | None, versions: Mapping[str, str], lost: str = "") -> str:
    """Return why torch sees no GPU, and where a driver is there what to do; nothing if it does.

    ``lost`` is what became of the process that asked the driver, if it did not answer.
    """
    driver = versions.get("nvidia_driver")
    if not reason or not driver:
        return reason or ""
    told = f"; {lost.partition(':')[0]}" if driver == UNKNOWN_VERSION else f" {driver}"
    there = f"{reason}, but there is a driver (NVIDIA{told})"
    if any(name in versions for name in ("cuda", "hip")):
        return (f"{there}: see CUDA_VISIBLE_DEVICES, "
                "what nvidia-smi lists, and whether the driver is new enough for this torch")
    return (f"{there}: name a Python whose torch is "
            f"built for CUDA by HPCBENCH_PYTHON, or run {sys.executable} -m pip install "
            "--force-reinstall torch --index-url https://download.pytorch.org/whl/cu126 (cu130 "
            "from driver 580 on)")


def _mig_devices() -> tuple[str, ...]:
    """Return the UUIDs of MIG devices that nvidia-smi lists."""
    if not shutil.which("nvidia-smi"):
        return ()
    return listed_mig(ask(["nvidia-smi", "-L"], _PATIENCE_S).stdout)


def listed_mig(text: str) -> tuple[str, ...]:
    """Return the UUIDs of MIG devices in what ``nvidia-smi -L`` prints."""
    return tuple(re.findall(r"\(UUID: (MIG-[\w/-]+)\)", text))
