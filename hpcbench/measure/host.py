"""The machine that a rank runs on: identity, kernel, processors, memory, network; plain JSON."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbench.measure.kernel_files import KernelFiles, cpu_list

_GIB = 2**30
_READ_CPUS = 16
"""Of so many of the rank's cores frequencies and governors are read: each is a file of its own,
and reading a frequency can interrupt that core."""
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


def host(files: KernelFiles, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return who the machine is. ``container`` is a hint: the name of what was seen, or None."""
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


def kernel(files: KernelFiles) -> dict[str, Any]:
    """Return the kernel's version and the settings that change timings."""
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


def cpu(files: KernelFiles, own: Sequence[int]) -> dict[str, Any]:
    """Return what the processors are; frequencies and governors of the first ``own`` cores only."""
    base = "sys/devices/system/cpu"
    read = list(own)[:_READ_CPUS]
    info = _cpuinfo(files)
    siblings = cpu_list(files.line(f"{base}/cpu{own[0]}/topology/thread_siblings_list")
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


def memory(files: KernelFiles) -> dict[str, Any]:
    """Return the memory of the machine and of its NUMA nodes, in bytes.

    ``installed_gib`` is the total rounded up to 8 GiB (below 16 GiB to 1 GiB): what the kernel
    keeps for itself differs by megabytes between equal machines, and between two of its boots.
    """
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


def load(files: KernelFiles) -> dict[str, Any]:
    """Return how busy the machine is at this moment; pressure in per cent over 10 s."""
    averages = files.line("proc/loadavg")
    ticks = [int(word) for word in (files.line("proc/stat") or "").split()[1:9]]
    total: int = sum(ticks)
    return {
        "average": [float(word) for word in averages.split()[:3]] if averages else None,
        "pressure": {name: _pressure(files, name) for name in ("cpu", "memory", "io")},
        "steal_share_since_boot": ticks[7] / total if len(ticks) == 8 and total else None,
    }


def network(files: KernelFiles) -> dict[str, Any]:
    """Return interfaces that are up (or of unknown state), InfiniBand ports and socket limits.

    Keys: ``interfaces`` {name: {speed_mbit, mtu, driver, state, loopback}}, ``not_described`` (how
    many more there are), ``infiniband`` {device/port: {state, rate, link_layer, firmware}}.
    """
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


def _cpuinfo(files: KernelFiles) -> dict[str, str]:
    """Return the fields of the first processor; the kernel makes up the file block by block."""
    text = files.text("proc/cpuinfo", 8192) or ""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _container(files: KernelFiles, environ: Mapping[str, str]) -> str | None:
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


def _time_offsets(files: KernelFiles) -> dict[str, str] | None:
    """Return what a time namespace adds to the clocks, in s and ns, or None if unknown."""
    lines = [line.split() for line in (files.text("proc/self/timens_offsets") or "").splitlines()]
    return {line[0]: f"{line[1]} {line[2]}" for line in lines if len(line) == 3} or None


def _command_line(files: KernelFiles) -> dict[str, str] | None:
    text = files.line("proc/cmdline")
    pairs = [word.partition("=") for word in text.split()] if text else []
    return {name: value for name, _, value in pairs
            if _KERNEL_FLAGS.fullmatch(name)} if text else None


def _distinct(files: KernelFiles, cpus: Sequence[int], name: str) -> list[str] | None:
    values = {files.line(f"sys/devices/system/cpu/cpu{number}/{name}") for number in cpus}
    return sorted(item for item in values if item) or None


def _turbo(files: KernelFiles) -> bool | None:
    off = files.number("sys/devices/system/cpu/intel_pstate/no_turbo")
    if off is not None:
        return off == 0
    on = files.number("sys/devices/system/cpu/cpufreq/boost")
    return None if on is None else on == 1


def _mhz(files: KernelFiles, cpus: Sequence[int], info: Mapping[str, str]) -> dict[str, Any]:
    """Return the lowest and highest frequency allowed, and that of each core now."""
    def read(name: str) -> list[float]:
        kilohertz = (files.number(f"sys/devices/system/cpu/cpu{number}/cpufreq/{name}")
                     for number in cpus)
        return [value / 1000 for value in kilohertz if value is not None]

    now = read("scaling_cur_freq")
    if not now and re.fullmatch(r"[0-9]+(\.[0-9]+)?", info.get("cpu MHz", "")):
        now = [float(info["cpu MHz"])]
    return {"lowest": min(read("scaling_min_freq"), default=None),
            "highest": max(read("scaling_max_freq"), default=None), "now": now or None}


def _mitigations(files: KernelFiles) -> dict[str, list[str]] | None:
    """Return the weaknesses of the processor by what the kernel does about them."""
    folder = "sys/devices/system/cpu/vulnerabilities"
    states = {name: files.line(f"{folder}/{name}") or "" for name in files.names(folder)}
    return {word: [name for name, state in states.items() if state.startswith(prefix)]
            for word, prefix in (("mitigated", "Mitigation"), ("vulnerable", "Vulnerable"))
            } if states else None


def _numa_node(files: KernelFiles, name: str) -> dict[str, Any]:
    text = files.text(f"sys/devices/system/node/{name}/meminfo") or ""
    total = re.search(r"MemTotal:\s*(\d+) kB", text)
    return {"cpus": files.line(f"sys/devices/system/node/{name}/cpulist"),
            "total_bytes": int(total[1]) * 1024 if total else None}


def _pressure(files: KernelFiles, name: str) -> float | None:
    match = re.match(r"some avg10=([0-9.]+)", files.text(f"proc/pressure/{name}") or "")
    return float(match[1]) if match else None


def _kib(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+)( kB)?", text or "")
    return int(match[1]) * 1024 if match else None


def _interface(files: KernelFiles, name: str) -> dict[str, Any]:
    """Return one interface; the kernel shows -1 or nothing where there is no speed."""
    folder = f"sys/class/net/{name}"
    speed = files.number(f"{folder}/speed")
    return {
        "speed_mbit": speed if speed and speed > 0 else None,
        "mtu": files.number(f"{folder}/mtu"),
        "driver": files.target(f"{folder}/device/driver"),
        "state": files.line(f"{folder}/operstate"),
        "loopback": files.number(f"{folder}/type") == _LOOPBACK_TYPE,
    }


def _infiniband(files: KernelFiles) -> dict[str, Any]:
    """Return the ports of RDMA devices, RoCE ones included, by ``device/port``."""
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
