"""What the machine has: its GPUs, the versions that figures depend on, and what is declared."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcbench.operations.peaks import DEVICES, LINKS

_FACTS = """
import json
from hpcbench.backends.facts import gather_facts
facts = gather_facts(())
print(json.dumps({"cuda": facts["cuda"], "versions": facts["versions"]}))
"""
_DECLARED = {"B200": ("B200 HGX", "nvlink", "nvlink5"), "H200": ("H200 SXM", "nvlink", "nvlink4"),
             "H100": ("H100 SXM", "nvlink", "nvlink4"), "A100": ("A100 SXM", "nvlink", "nvlink3"),
             "V100": ("V100 SXM2", "nvlink", "nvlink2"), "A10": ("A10", "pcie", "pcie4")}
"""Word in a GPU's name -> its row of `operations.peaks`, its link, and the row of that."""
_OTHER_FORMS = {"PCIE", "NVL", "MIG"}
"""Words of forms of these GPUs, and of parts of them, that have other peaks."""
_PATIENCE_S = 180.0
"""For the driver to answer: a GPU that hangs must not stop the session for ever."""


@dataclass(frozen=True)
class Machine:
    """The GPUs that torch sees, and why there is none; MIG devices by their UUIDs."""

    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    details: tuple[Any, ...] = ()
    mig: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    why_none: str = ""

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
        words = re.findall(r"[A-Z0-9]+", self.names[0].upper()) if self.names else []
        known = next((_DECLARED[word] for word in words if word in _DECLARED), None)
        if known is None or _OTHER_FORMS & set(words):
            return {}
        device, link, row = known
        return {"device_type": "cuda", "num_devices": self.gpus,
                "peak_flops": dict(DEVICES[device].flops),
                "link_peaks": {link: LINKS[row].gb_per_s} if self.gpus > 1 else {}}


def look() -> Machine:
    """Ask torch in a process of its own: this one touches no device."""
    try:
        done = subprocess.run([sys.executable, "-c", _FACTS], capture_output=True, text=True,
                              timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return Machine(why_none=f"torch, or the driver, does not answer within {_PATIENCE_S:g} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Machine(why_none=f"hpcbench and torch cannot be asked: {last}")
    facts = json.loads(done.stdout.splitlines()[-1])
    cuda = facts["cuda"]
    mig = _mig_devices() if cuda["available"] else ()
    return Machine(tuple(cuda["names"]), tuple(cuda["uuids"]), tuple(cuda["memory_bytes"]),
                   tuple(cuda["details"]), mig, facts["versions"], cuda["reason"] or "")


def _mig_devices() -> tuple[str, ...]:
    """Return the UUIDs of MIG devices that nvidia-smi lists."""
    if not shutil.which("nvidia-smi"):
        return ()
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True,
                              timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return ()
    return listed_mig(done.stdout)


def listed_mig(text: str) -> tuple[str, ...]:
    """Return the UUIDs of MIG devices in what ``nvidia-smi -L`` prints."""
    return tuple(re.findall(r"\(UUID: (MIG-[\w/-]+)\)", text))
