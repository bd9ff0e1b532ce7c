"""What a rank ran with: machine, allocation, network, and an allow-list of variables.

Every topic is nested plain JSON; what the system does not show is None, and a topic that cannot be
read says why. Nothing outside the allow-list of variables is ever recorded, and no secret
(`hpcbench.masking`).
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from hpcbench.masking import holds_secret, masked, masked_json
from hpcbench.measure.allocation import process
from hpcbench.measure.host import cpu, host, kernel, load, memory, network
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.measure.libraries import loaded_libraries
from hpcbench.measure.portable import own_cores
from hpcbench.texts import valid_json

_RECORDED = re.compile(
    r"(NCCL|RCCL|UCC|UCX|GLOO|TORCH|PYTORCH|OMP|GOMP|MKL|KMP|FI|HSA|OMPI_MCA|PRTE_MCA|PMIX_MCA"
    r"|MPICH|MPIR_CVAR|I_MPI|PSM2|PSM3|CUBLAS|CUBLASLT|NVSHMEM|NVTE|OFI_NCCL|SHARP|HIP|ROCBLAS"
    r"|HIPBLASLT|MIOPEN)_\w+"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|MODULE_LOADING)"
    r"|(NVIDIA|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|PYTHON(OPTIMIZE|HASHSEED|DEVMODE)")
_OF_THE_LAUNCHER = re.compile(r"OMPI_MCA_(orte|ess|pmix|PREFIXES|initial_wdir)\w*")
"""What Open MPI sets by itself under names of its parameters: job ids, addresses, keys."""
_OF_THE_SCHEDULER = re.compile(
    r"SLURM_(JOB_(ID|NAME|NODELIST|NUM_NODES|PARTITION|QOS|CPUS_PER_NODE)|NTASKS|NTASKS_PER_NODE"
    r"|CPUS_PER_TASK|CPU_BIND|CPU_BIND_TYPE|MEM_BIND|MEM_BIND_TYPE|DISTRIBUTION|GPUS_ON_NODE"
    r"|JOB_GPUS|TASKS_PER_NODE|HINT|RESTART_COUNT|MPI_TYPE|ARRAY_JOB_ID|ARRAY_TASK_ID"
    r"|TOPOLOGY_ADDR(_PATTERN)?)"
    r"|SLURMD_NODENAME|PBS_(JOBID|JOBNAME|QUEUE|NUM_NODES|NUM_PPN)|LSB_(JOBID|JOBNAME|QUEUE|MAX_NUM_PROCESSORS)"
    r"|FLUX_(JOB_ID|JOB_SIZE|JOB_NNODES)|(JOB_ID|JOB_NAME|QUEUE|NSLOTS|NHOSTS)")


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that explain a result, secrets in their values masked."""
    return _allowed(environ, lambda name: bool(
        _RECORDED.fullmatch(name) and not _OF_THE_LAUNCHER.fullmatch(name)))


def scheduler_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what Slurm, PBS, LSF, Flux or Grid Engine say of the job, secrets masked."""
    return _allowed(environ, lambda name: bool(_OF_THE_SCHEDULER.fullmatch(name)))


def _allowed(environ: Mapping[str, str], allows: Callable[[str], bool]) -> dict[str, str]:
    return {name: masked(value, environ) for name, value in sorted(environ.items())
            if allows(name) and not holds_secret(name, value)}


def node_identity() -> str:
    """Return what is the same for all ranks that share one machine's clock and memory."""
    return f"{socket.gethostname()}/{_boot_id(Path('/proc'))}"


def clock_identity(proc: Path = Path("/proc")) -> str:
    """Return what is the same for processes whose CLOCK_MONOTONIC is the same physical clock.

    Linux: the boot and the time namespace (a container may have its own), with its offset. A
    namespace with the same offset counts as another clock, which costs ping-pongs, not accuracy.
    Elsewhere: the host name.
    """
    boot, namespace = _boot_id(proc), proc / "self/ns/time"
    if not boot:
        return socket.gethostname()
    if not namespace.exists():  # Linux before 5.6
        return boot
    status = namespace.stat()
    offset = [line.split()[1:] for line in (proc / "self/timens_offsets").read_text().splitlines()
              if line.startswith("monotonic")]
    return f"{boot}/{status.st_dev}:{status.st_ino}/{':'.join(*offset)}"


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return ""


def machine(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, Any]:
    """Return plain JSON values that describe this rank's machine and process; never raises.

    Keys: ``started_at``, ``memory_bytes``, ``clock``, ``clock_resolution_ns``, ``variables``, and
    the topics ``host``, ``kernel``, ``cpu``, ``memory``, ``network``, ``process``, ``scheduler``,
    ``load``, ``python``, ``libraries`` {supervisor: `loaded_libraries`}. Of a topic that cannot be
    read there is only {"unreadable": why}. ``root`` is where /proc and /sys are read.
    """
    files = KernelFiles(root)
    topics: dict[str, Callable[[], Any]] = {
        "host": lambda: host(files, environ),
        "kernel": lambda: kernel(files),
        "cpu": lambda: cpu(files, own_cores()),
        "memory": lambda: memory(files),
        "network": lambda: network(files),
        "process": lambda: process(files, environ),
        "scheduler": lambda: scheduler_variables(environ),
        "load": lambda: load(files),
        "python": _python,
        "libraries": lambda: {"supervisor": loaded_libraries(files)},
    }
    recorded = {name: _or_reason(read) for name, read in topics.items()}
    return valid_json({  # type: ignore[no-any-return]
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "memory_bytes": psutil.virtual_memory().total,
        "clock": "CLOCK_MONOTONIC",
        "clock_resolution_ns": clock_resolution_ns(),
        "variables": recorded_variables(environ),
        **masked_json(recorded, environ),
    })


def _or_reason(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a topic, or why it cannot be read: a machine that is strange can still be measured."""
    try:
        return read()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _python() -> dict[str, Any]:
    """Return what of the interpreter changes how fast the timed loop runs."""
    return {"implementation": sys.implementation.name, "build": sys.version,
            "optimize": sys.flags.optimize, "dev_mode": sys.flags.dev_mode,
            "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
            "traced": sys.gettrace() is not None or sys.getprofile() is not None}


def clock_resolution_ns(reads: int = 1000) -> int:
    """Return the smallest step between two different readings of the clock, in ns."""
    stamps = [time.perf_counter_ns() for _ in range(reads)]
    steps = [b - a for a, b in zip(stamps, stamps[1:], strict=False) if b > a]
    return min(steps, default=0)


def described_hardware(
    configured: Mapping[str, Any], facts: Mapping[str, Any], total_memory_bytes: int,
) -> dict[str, Any]:
    """Return section ``hardware`` with device_type, num_devices and memory_per_device_gb filled in.

    Nothing is guessed: peaks, interconnects and prices that nobody gave stay null. The number of
    CPU devices of a node is 1: all its cores and its whole memory.
    """
    cuda = facts["cuda"]
    detected: dict[str, Any] = {
        "device_type": "cpu", "num_devices": 1, "memory_per_device_gb": total_memory_bytes / 1e9}
    if cuda["available"]:
        detected = {"device_type": "cuda", "num_devices": len(cuda["names"]),
                    "memory_per_device_gb": min(cuda["memory_bytes"]) / 1e9}
    elif not facts["mps"]["reason"]:
        detected = {"device_type": "mps", "num_devices": 1,
                    "memory_per_device_gb": facts["mps"]["memory_bytes"] / 1e9}
    if configured.get("device_type") not in (None, detected["device_type"]):
        detected = {}  # what was detected is another device
    return {name: detected.get(name) if value is None else value
            for name, value in configured.items()}
