"""Environment of a rank: machine, libraries, network, and an allow-list of variables as plain JSON,
without secrets (`hpcbench.texts`). Unknown is None; an unreadable topic has the reason. Libraries
are identified by the linker's build id, else by a hash of size, beginning and end."""

from __future__ import annotations

import hashlib
import platform
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from hpcbench.measurement import process
from hpcbench.texts import holds_secret, masked, masked_json, valid_json

_GIB = 2**30
_READ_CPUS = 16
"""Cores whose frequencies and governors are read: reading one can interrupt it."""
_KERNEL_FLAGS = re.compile(
    r"(isolcpus|nohz|nohz_full|rcu_nocbs|irqaffinity|skew_tick|mitigations|nosmt|nopti|nospectre_v2"
    r"|spectre_v2|transparent_hugepage|numa_balancing|numa|hugepages|hugepagesz|default_hugepagesz"
    r"|intel_pstate|amd_pstate|intel_idle\.max_cstate|processor\.max_cstate|idle|cpuidle\.\w+"
    r"|cpufreq\.\w+|clocksource|tsc|nokaslr|norandmaps|iommu|iommu\.\w+|intel_iommu|amd_iommu|pci"
    r"|pcie_aspm|nmi_watchdog|nowatchdog|nosoftlockup|watchdog|preempt|threadirqs|audit|cgroup_\w+"
    r"|systemd\.unified_cgroup_hierarchy|maxcpus|nr_cpus|mem|sched_\w+|psi)")
"""Flags of the kernel's command line that change timings; others may be anybody's business."""
_CONTAINER_CGROUPS = ("docker", "kubepods", "libpod", "containerd", "lxc", "crio", "garden")
_MOST_INTERFACES = 32
"""So many interfaces are described; a node of a container cluster can have hundreds."""
_LOOPBACK_TYPE = 772  # ARPHRD_LOOPBACK, include/uapi/linux/if_arp.h


def host(files: process.KernelFiles, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the identity of the machine. ``container`` is a hint."""
    system = files.fields("etc/os-release").get("PRETTY_NAME")
    uptime = files.line("proc/uptime")
    return {
        "name": socket.gethostname(),
        "boot_id": files.line("proc/sys/kernel/random/boot_id"),
        "uptime_s": float(uptime.split()[0]) if uptime else None,
        "system": system,
        "machine": platform.machine(),
        "vendor": files.line("sys/class/dmi/id/sys_vendor"),
        "product": files.line("sys/class/dmi/id/product_name"),
        "hypervisor": "hypervisor" in (_cpuinfo(files).get("flags") or "").split() or None,
        "container": _container(files, environ),
        "time_offsets": _time_offsets(files),
    }


def kernel(files: process.KernelFiles) -> dict[str, Any]:
    pages = "sys/kernel/mm/transparent_hugepage"
    clocks = "sys/devices/system/clocksource/clocksource0"
    available = files.line(f"{clocks}/available_clocksource")
    nohz_full = files.line("sys/devices/system/cpu/nohz_full")
    return {
        "release": platform.release(),
        "build": platform.version(),
        "command_line": _command_line(files),
        "clocksource": files.line(f"{clocks}/current_clocksource"),
        "clocksources": available.split() if available else None,
        "transparent_hugepages": files.choice(f"{pages}/enabled"),
        "transparent_hugepage_defrag": files.choice(f"{pages}/defrag"),
        "numa_balancing": files.number("proc/sys/kernel/numa_balancing"),
        "aslr": files.number("proc/sys/kernel/randomize_va_space"),
        "autogroup": files.number("proc/sys/kernel/sched_autogroup_enabled"),
        "nmi_watchdog": files.number("proc/sys/kernel/nmi_watchdog"),
        "ptrace_scope": files.number("proc/sys/kernel/yama/ptrace_scope"),
        "isolated_cpus": files.line("sys/devices/system/cpu/isolated"),
        "nohz_full_cpus": None if nohz_full == "(null)" else nohz_full,
    }


def cpu(files: process.KernelFiles, own: Sequence[int]) -> dict[str, Any]:
    base = "sys/devices/system/cpu"
    read = list(own)[:_READ_CPUS]
    info = _cpuinfo(files)
    siblings = process.cpu_list(files.line(f"{base}/cpu{own[0]}/topology/thread_siblings_list")
                                if own else None)
    return {
        "name": info.get("model name") or platform.machine(),
        "microcode": info.get("microcode"),
        "online": files.line(f"{base}/online"),
        "smt": files.line(f"{base}/smt/control"),
        "threads_per_core": len(siblings) or None,
        "frequency_driver": files.line(f"{base}/cpu{read[0]}/cpufreq/scaling_driver")
        if read else None,
        "governors": _distinct(files, read, "cpufreq/scaling_governor"),
        "energy_preferences": _distinct(files, read, "cpufreq/energy_performance_preference"),
        "turbo": _turbo(files),
        "idle_driver": files.line(f"{base}/cpuidle/current_driver"),
        "mhz": _mhz(files, read, info),
        "mitigations": _mitigations(files),
    }


def memory(files: process.KernelFiles) -> dict[str, Any]:
    """Return the memory of the machine and its NUMA nodes, in bytes. ``installed_gib`` is rounded
    up to 8 GiB (below 16 GiB to 1 GiB): equal machines differ by what the kernel keeps."""
    info = files.fields("proc/meminfo")
    total = _kib(info.get("MemTotal"))
    huge_pages = info.get("HugePages_Total", "")
    step = 8 if total and total > 16 * _GIB else 1
    nodes = [name for name in files.names("sys/devices/system/node")
             if re.fullmatch(r"node\d+", name)]
    return {
        "total_bytes": total,
        "installed_gib": -(-total // (step * _GIB)) * step if total else None,
        "available_bytes": _kib(info.get("MemAvailable")),
        "swap_bytes": _kib(info.get("SwapTotal")),
        "huge_pages": int(huge_pages) if huge_pages.isdecimal() else None,
        "huge_page_bytes": _kib(info.get("Hugepagesize")),
        "numa_nodes": {name.removeprefix("node"): _numa_node(files, name) for name in nodes},
    }


def load(files: process.KernelFiles) -> dict[str, Any]:
    averages = files.line("proc/loadavg")
    ticks = process.cpu_ticks(files.line("proc/stat")).get("cpu")
    return {
        "average": [float(value) for value in averages.split()[:3]] if averages else None,
        "pressure": {name: _pressure(files, name) for name in ("cpu", "memory", "io")},
        "steal_share_since_boot": ticks.steal / sum(ticks) if ticks and sum(ticks) else None,
    }


def network(files: process.KernelFiles) -> dict[str, Any]:
    """Return interfaces that are up (or of unknown state), InfiniBand ports and socket limits.
    ``not_described``: how many more interfaces there are."""
    names = [name for name in files.names("sys/class/net")
             if files.exists(f"sys/class/net/{name}/mtu")]
    used = [name for name in names
            if files.line(f"sys/class/net/{name}/operstate") not in ("down", "lowerlayerdown")]
    hardware_first = sorted(used, key=lambda name: not files.exists(f"sys/class/net/{name}/device"))
    described = hardware_first[:_MOST_INTERFACES]
    core, ipv4 = "proc/sys/net/core", "proc/sys/net/ipv4"
    return {
        "interfaces": {name: _interface(files, name) for name in sorted(described)},
        "not_described": len(names) - len(described),
        "infiniband": _infiniband(files),
        "congestion_control": files.line(f"{ipv4}/tcp_congestion_control"),
        "rmem_max_bytes": files.number(f"{core}/rmem_max"),
        "wmem_max_bytes": files.number(f"{core}/wmem_max"),
    }


def _cpuinfo(files: process.KernelFiles) -> dict[str, str]:
    text = files.text("proc/cpuinfo", 8192) or ""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _container(files: process.KernelFiles, environ: Mapping[str, str]) -> str | None:
    for name in ("APPTAINER_NAME", "SINGULARITY_NAME"):
        if environ.get(name):
            return f"{name.partition('_')[0].lower()} {environ[name]}"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    for path, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if files.exists(path):
            return name
    groups = files.text("proc/self/cgroup") or ""
    return next((name for name in _CONTAINER_CGROUPS if name in groups), None)


def _time_offsets(files: process.KernelFiles) -> dict[str, str] | None:
    """Return the offsets of a time namespace, in s and ns, or None if unknown."""
    lines = [line.split() for line in (files.text("proc/self/timens_offsets") or "").splitlines()]
    return {line[0]: f"{line[1]} {line[2]}" for line in lines if len(line) == 3} or None


def _command_line(files: process.KernelFiles) -> dict[str, str] | None:
    text = files.line("proc/cmdline")
    pairs = [parameter.partition("=") for parameter in text.split()] if text else []
    return {name: value for name, _, value in pairs
            if _KERNEL_FLAGS.fullmatch(name)} if text else None


def _distinct(files: process.KernelFiles, cpus: Sequence[int], name: str) -> list[str] | None:
    values = {files.line(f"sys/devices/system/cpu/cpu{number}/{name}") for number in cpus}
    return sorted(item for item in values if item) or None


def _turbo(files: process.KernelFiles) -> bool | None:
    off = files.number("sys/devices/system/cpu/intel_pstate/no_turbo")
    if off is not None:
        return off == 0
    on = files.number("sys/devices/system/cpu/cpufreq/boost")
    return None if on is None else on == 1


def _mhz(
    files: process.KernelFiles, cpus: Sequence[int], info: Mapping[str, str],
) -> dict[str, Any]:
    def read(name: str) -> list[float]:
        kilohertz = (files.number(f"sys/devices/system/cpu/cpu{number}/cpufreq/{name}")
                     for number in cpus)
        return [value / 1000 for value in kilohertz if value is not None]

    now = read("scaling_cur_freq")
    if not now and re.fullmatch(r"[0-9]+(\.[0-9]+)?", info.get("cpu MHz", "")):
        now = [float(info["cpu MHz"])]
    return {"lowest": min(read("scaling_min_freq"), default=None),
            "highest": max(read("scaling_max_freq"), default=None), "now": now or None}


def _mitigations(files: process.KernelFiles) -> dict[str, list[str]] | None:
    folder = "sys/devices/system/cpu/vulnerabilities"
    states = {name: files.line(f"{folder}/{name}") or "" for name in files.names(folder)}
    return {label: [name for name, state in states.items() if state.startswith(prefix)]
            for label, prefix in (("mitigated", "Mitigation"), ("vulnerable", "Vulnerable"))
            } if states else None


def _numa_node(files: process.KernelFiles, name: str) -> dict[str, Any]:
    text = files.text(f"sys/devices/system/node/{name}/meminfo") or ""
    total = re.search(r"MemTotal:\s*(\d+) kB", text)
    return {"cpus": files.line(f"sys/devices/system/node/{name}/cpulist"),
            "total_bytes": int(total[1]) * 1024 if total else None}


def _pressure(files: process.KernelFiles, name: str) -> float | None:
    match = re.match(r"some avg10=([0-9.]+)", files.text(f"proc/pressure/{name}") or "")
    return float(match[1]) if match else None


def _kib(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+)( kB)?", text or "")
    return int(match[1]) * 1024 if match else None


def _interface(files: process.KernelFiles, name: str) -> dict[str, Any]:
    folder = f"sys/class/net/{name}"
    speed = files.number(f"{folder}/speed")
    return {
        "speed_mbit": speed if speed and speed > 0 else None,
        "mtu": files.number(f"{folder}/mtu"),
        "driver": files.target(f"{folder}/device/driver"),
        "state": files.line(f"{folder}/operstate"),
        "loopback": files.number(f"{folder}/type") == _LOOPBACK_TYPE,
    }


def _infiniband(files: process.KernelFiles) -> dict[str, Any]:
    base = "sys/class/infiniband"
    return {
        f"{device}/{port}": {
            "state": files.line(f"{base}/{device}/ports/{port}/state"),
            "rate": files.line(f"{base}/{device}/ports/{port}/rate"),
            "link_layer": files.line(f"{base}/{device}/ports/{port}/link_layer"),
            "firmware": files.line(f"{base}/{device}/fw_ver"),
        }
        for device in files.names(base)[:_MOST_INTERFACES]
        for port in files.names(f"{base}/{device}/ports")}


_NAMES = re.compile(
    r"lib(torch|torch_cpu|torch_cuda|torch_hip|c10|c10_cuda|torch_ucc"
    r"|nccl|rccl|nccl-net[\w-]*|ucc|ucp|uct|ucs|mpi|mpi_\w+|open-pal|open-rte|prrte|pmix|pmi2?|fabric"
    r"|psm2|psm_infinipath|ibverbs|mlx5|rdmacm|cuda|cudart|cublas|cudnn|nvshmem_host"
    r"|amdhip64|hsa-runtime64|gomp|iomp5|omp|mkl_rt|mkl_core|openblas\w*"
    r"|jemalloc|tcmalloc\w*|mimalloc|tbbmalloc\w*|hugetlbfs|numa|c)(-[0-9a-f]{8})?[-.][\w.-]*")
_SAMPLE_BYTES = 64 * 1024
_MAPS_BYTES = 4 * 2**20
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_MOST_HEADERS = 256
_MOST_NOTE_BYTES = 64 * 1024


def loaded_libraries(files: process.KernelFiles | None = None) -> dict[str, dict[str, Any]]:
    """Return the relevant libraries of this process: {file name: {path, size_bytes, id}}. ``id`` is
    ``build-id:`` or ``sample:`` and a hexadecimal number, None if unreadable."""
    libraries: dict[str, dict[str, Any]] = {}
    for path in mapped_files(files):
        if ".so" in path.name and _NAMES.fullmatch(path.name):
            of_name = sum(name.partition(" (")[0] == path.name for name in libraries)
            name = f"{path.name} ({of_name + 1})" if of_name else path.name
            libraries[name] = {"path": str(path), **_identity(path)}
    return libraries


def mapped_files(files: process.KernelFiles | None = None) -> list[Path]:
    text = (files or process.KernelFiles()).text("proc/self/maps", _MAPS_BYTES) or ""
    return [Path(path) for path in sorted({line.split(maxsplit=5)[5] for line in text.splitlines()
                                           if len(line.split(maxsplit=5)) == 6})]


def _identity(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            return {"size_bytes": size, "id": build_id(stream) or _sample(stream, size)}
    except (OSError, struct.error, OverflowError):
        return {"size_bytes": None, "id": None}


def build_id(stream: BinaryIO) -> str | None:
    """Return the GNU build id of a 64-bit little-endian ELF file as ``build-id:hex``, or None
    (elf(5))."""
    stream.seek(0)
    head = stream.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return None
    offset, = struct.unpack_from("<Q", head, 32)
    entry_size, count = struct.unpack_from("<HH", head, 54)
    if entry_size < 56:
        return None
    for number in range(min(count, _MOST_HEADERS)):
        stream.seek(offset + number * entry_size)
        kind, _, at, _, _, size, _, align = struct.unpack("<IIQQQQQQ", stream.read(56))
        if kind == _PT_NOTE and (note := _note(stream, at, size, align)):
            return note
    return None


def _note(stream: BinaryIO, at: int, size: int, align: int) -> str | None:
    stream.seek(at)
    data, offset, step = stream.read(min(size, _MOST_NOTE_BYTES)), 0, 8 if align == 8 else 4
    while offset + 12 <= len(data):
        name_size, value_size, kind = struct.unpack_from("<III", data, offset)
        value_at = -(-(offset + 12 + name_size) // step) * step
        if kind == _NT_GNU_BUILD_ID and data[offset + 12:offset + 16] == b"GNU\0" and value_size:
            return f"build-id:{data[value_at:value_at + value_size].hex()}"
        offset = -(-(value_at + value_size) // step) * step
    return None


def _sample(stream: BinaryIO, size: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    for at in (0, max(0, size - _SAMPLE_BYTES)):
        stream.seek(at)
        digest.update(stream.read(_SAMPLE_BYTES))
    return f"sample:{digest.hexdigest()[:32]}"


_RECORDED = re.compile(
    r"(NCCL|RCCL|UCC|UCX|GLOO|TORCH|PYTORCH|OMP|GOMP|MKL|KMP|FI|HSA|OMPI_MCA|PRTE_MCA|PMIX_MCA"
    r"|MPICH|MPIR_CVAR|I_MPI|PSM2|PSM3|CUBLAS|CUBLASLT|NVSHMEM|NVTE|OFI_NCCL|SHARP|HIP|ROCBLAS"
    r"|HIPBLASLT|MIOPEN)_\w+"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|MODULE_LOADING)"
    r"|(NVIDIA|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|PYTHON(OPTIMIZE|HASHSEED|DEVMODE)")
_OF_THE_LAUNCHER = re.compile(
    r"OMPI_MCA_(orte|ess|pmix|PREFIXES|initial_wdir)\w*"
    r"|I_MPI_(HYDRA_UUID|INFO_\w+|PIN_(INFO|MAPPING)|MPIRUN|INTERNAL_MEM_POLICY"
    r"|RETURN_WIN_MEM_NUMA)")
"""Variables that launchers set under names of their parameters: ids, addresses, keys, places."""
_OF_THE_SCHEDULER = re.compile(
    r"SLURM_(JOB_(ID|NAME|NODELIST|NUM_NODES|PARTITION|QOS|CPUS_PER_NODE)|NTASKS|NTASKS_PER_NODE"
    r"|CPUS_PER_TASK|CPU_BIND|CPU_BIND_TYPE|MEM_BIND|MEM_BIND_TYPE|DISTRIBUTION|GPUS_ON_NODE"
    r"|JOB_GPUS|TASKS_PER_NODE|HINT|RESTART_COUNT|MPI_TYPE|ARRAY_JOB_ID|ARRAY_TASK_ID"
    r"|TOPOLOGY_ADDR(_PATTERN)?)"
    r"|SLURMD_NODENAME|PBS_(JOBID|JOBNAME|QUEUE|NUM_NODES|NUM_PPN)|LSB_(JOBID|JOBNAME|QUEUE|MAX_NUM_PROCESSORS)"
    r"|FLUX_(JOB_ID|JOB_SIZE|JOB_NNODES)|(JOB_ID|JOB_NAME|QUEUE|NSLOTS|NHOSTS)")


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return _allowed(environ, lambda name: bool(
        _RECORDED.fullmatch(name) and not _OF_THE_LAUNCHER.fullmatch(name)))


def scheduler_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return _allowed(environ, lambda name: bool(_OF_THE_SCHEDULER.fullmatch(name)))


def nccl_conf(files: process.KernelFiles, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return {variable: {value, file}} of NCCL's files, those alone that take effect.

    Rules of setEnvFile and initEnv of NCCL 2.30 (src/misc/param.cc): a variable that is set stays;
    a user's file, or the one that NCCL_CONF_FILE names in its place, comes before the system's;
    lines that begin with # are none, and blanks belong to names and values."""
    home = environ.get("HOME")
    own = environ.get("NCCL_CONF_FILE") or (f"{home}/.nccl.conf" if home else None)
    settings: dict[str, dict[str, str]] = {}
    for path in (str(Path(one).absolute()) for one in (own, "/etc/nccl.conf") if one):
        lines = re.split(r"\r?\n", files.text(path.lstrip("/")) or "")
        pairs = [line.partition("=") for line in lines if "=" in line and line[0] != "#"]
        of_nccl = {name: value for name, _, value in reversed(pairs)  # the first of a name counts
                   if re.fullmatch(r"NCCL_\w+", name) and name not in environ}
        settings = {**{name: {"value": value, "file": path} for name, value
                       in _allowed(of_nccl, lambda name: True).items()}, **settings}
    return settings


def _allowed(environ: Mapping[str, str], allows: Callable[[str], bool]) -> dict[str, str]:
    return {name: masked(value, environ) for name, value in sorted(environ.items())
            if allows(name) and not holds_secret(name, value)}


def node_identity() -> str:
    """Return a text that is the same for all ranks that share a machine's clock and memory."""
    return f"{socket.gethostname()}/{_boot_id(Path('/proc'))}"


def clock_identity(proc: Path = Path("/proc")) -> str:
    """Return a text that is the same for processes with the same CLOCK_MONOTONIC: boot and time
    namespace with its offset. Equal offsets in two namespaces count as two clocks, which only costs
    ping-pongs."""
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
    """Return JSON values that describe this rank's machine and process; never raises. A topic that
    cannot be read is {"unreadable": why}. ``root`` is where /proc and /sys are read."""
    files = process.KernelFiles(root)
    topics: dict[str, Callable[[], Any]] = {
        "host": lambda: host(files, environ),
        "kernel": lambda: kernel(files),
        "cpu": lambda: cpu(files, process.own_cores()),
        "memory": lambda: memory(files),
        "network": lambda: network(files),
        "process": lambda: process.allocation(files, environ),
        "scheduler": lambda: scheduler_variables(environ),
        "load": lambda: load(files),
        "nccl_conf": lambda: nccl_conf(files, environ),
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
    try:
        return read()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


def _python() -> dict[str, Any]:
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
    """Return section ``hardware`` with device_type, num_devices and memory_per_device_gb filled in;
    nothing else is guessed. A node is one CPU device."""
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
