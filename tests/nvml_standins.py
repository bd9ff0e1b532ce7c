"""Machines with NVIDIA GPUs for the real pynvml: stand-ins for libnvidia-ml.so.1, built by gcc.

``build`` makes a folder for LD_LIBRARY_PATH, for real jobs. The fixture ``standins`` has each
machine built once, and asks in forks of the test's process: pynvml loads a library once in a
process.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from hpcbench.backends.child import Answers, Child, ChildTask

SOURCE = Path(__file__).parent / "data" / "nvml_standin.c"
LIBRARY = "libnvidia-ml.so.1"
_FABRIC = "nvmlDeviceGetGpuFabricInfoV"
_TEMPERATURE = "nvmlDeviceGetTemperature"
MACHINES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "h100": ("MACHINE_H100",), "gb200": ("MACHINE_GB200",), "v100": ("MACHINE_V100",),
    "a10": ("MACHINE_A10",), "mig": ("MACHINE_MIG",), "none": ("MACHINE_NONE",),
    "old": ("MACHINE_OLD",), "denied": ("MACHINE_DENIED",), "garbled": ("MACHINE_H100", "GARBLED"),
    "xid": ("MACHINE_H100", "XID=79"),
    "sleeps": ("MACHINE_H100", f'SLEEPS="{_FABRIC}"'),
    "crashes": ("MACHINE_H100", f'CRASHES="{_FABRIC}"'),
    "telemetry_sleeps": ("MACHINE_H100", f'SLEEPS="{_TEMPERATURE}"'),
    "telemetry_hangs": ("MACHINE_H100", 'SLEEPS="nvmlDeviceGetPowerUsage '
                        'nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetClockInfo"'),
    "telemetry_crashes": ("MACHINE_H100", f'CRASHES="{_TEMPERATURE}"'),
    "start_sleeps": ("MACHINE_H100", 'SLEEPS="nvmlInitWithFlags"'),
    "start_crashes": ("MACHINE_H100", 'CRASHES="nvmlInitWithFlags"'),
})
"""What is asked of the stand-in (tests/data/nvml_standin.c), as definitions of the compiler."""


def build(machine: str, folder: Path) -> Path:
    """Compile the stand-in of a machine into ``folder``, which goes onto LD_LIBRARY_PATH."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: gcc is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror",
         f"-Wl,-soname,{LIBRARY}", *(f"-D{word}" for word in MACHINES[machine]),
         "-o", str(folder / LIBRARY), str(SOURCE)], check=True)
    return folder


@dataclass
class Standins:
    """The machines that the tests of one session asked for, each built once below ``home``."""

    home: Path
    built: dict[str, Path] = field(default_factory=dict)

    def folder(self, machine: str) -> Path:
        """Return the folder of a machine's library, for LD_LIBRARY_PATH."""
        if machine not in self.built:
            self.built[machine] = build(machine, self.home / machine)
        return self.built[machine]

    def answers(self, machine: str, question: ChildTask, limit_s: float = 60.0) -> Answers:
        """Return what is answered in a fork in which pynvml finds this machine."""
        library = self.folder(machine) / LIBRARY

        def on_it() -> Iterable[tuple[str, Any]]:
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # what is loaded is found by its soname
            return question()

        return Child(on_it).wait(limit_s)

    def ask(self, machine: str, ask: Callable[[], Any]) -> Any:
        """Return the plain JSON values that ``ask`` returns on this machine."""
        answers = self.answers(machine, lambda: [("answer", ask())])
        assert answers.lost is None, answers.lost
        return answers.values["answer"]
