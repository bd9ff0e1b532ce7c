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

from hpcbench.config.presets.preset import load_preset

_FACTS = """
import json
from hpcbench.backends.facts import gather_facts
facts = gather_facts(())
print(json.dumps({"cuda": facts["cuda"], "versions": facts["versions"]}))
"""
_PRESETS = {"H100": "h100-nvlink", "H200": "h200-nvlink", "A100": "a100-nvlink",
            "V100": "v100-nvlink", "A10": "a10-cluster"}
"""Word in a GPU's name -> the preset of `hpcbench gen-config` that declares its peaks."""


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

        Memory is left out, so that batches that do not fit are tried.
        """
        words = re.findall(r"\w+", self.names[0]) if self.names else []
        preset = next((_PRESETS[word] for word in words if word in _PRESETS), None)
        if preset is None:
            return {}
        declared = load_preset(preset).content["hardware"]
        return {"device_type": "cuda", "num_devices": self.gpus,
                "peak_flops": {dtype: float(peak) for dtype, peak
                               in declared.get("peak_flops", {}).items()},
                "link_peaks": declared.get("link_peaks", {}) if self.gpus > 1 else {}}


def look() -> Machine:
    """Ask torch in a process of its own: this one touches no device."""
    done = subprocess.run([sys.executable, "-c", _FACTS], capture_output=True, text=True,
                          check=False)
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
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed_mig(done.stdout)


def listed_mig(text: str) -> tuple[str, ...]:
    """Return the UUIDs of MIG devices in what ``nvidia-smi -L`` prints."""
    return tuple(re.findall(r"\(UUID: (MIG-[\w/-]+)\)", text))
