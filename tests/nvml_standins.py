"""Machines with NVIDIA GPUs for the real pynvml: stand-ins for libnvidia-ml.so.1, built by gcc.

``build`` makes a folder for LD_LIBRARY_PATH, for real jobs. ``on`` asks in a fork of this process.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

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


@functools.cache
def built(machine: str) -> Path:
    """Return `build` of this process, made once."""
    return build(machine, Path(tempfile.mkdtemp(prefix=f"hpcbench-nvml-{machine}-")))


def load(machine: str) -> None:
    """Have pynvml of this process, which must not have loaded NVML, take that of a machine."""
    ctypes.CDLL(str(built(machine) / LIBRARY), ctypes.RTLD_GLOBAL)
