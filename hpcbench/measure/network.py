"""The network interfaces of a machine, as plain JSON values."""

from __future__ import annotations

from typing import Any

from hpcbench.measure.kernel_files import KernelFiles

_MOST = 32
"""So many interfaces are described; a node of a container cluster can have hundreds."""
_LOOPBACK_TYPE = 772  # ARPHRD_LOOPBACK, include/uapi/linux/if_arp.h


def network(files: KernelFiles) -> dict[str, Any]:
    """Return interfaces that are up (or of unknown state), InfiniBand ports and socket limits.

    Keys: ``interfaces`` {name: {speed_mbit, mtu, driver, state, loopback}}, ``not_described`` (how
    many more there are), ``infiniband`` {device/port: {state, rate, link_layer, firmware}}.
    """
    names = [name for name in files.names("sys/class/net")
             if files.exists(f"sys/class/net/{name}/mtu")]
    used = [name for name in names
            if files.line(f"sys/class/net/{name}/operstate") not in ("down", "lowerlayerdown")]
    described = sorted(used, key=lambda name: (not _is_hardware(files, name), name))[:_MOST]
    core, ipv4 = "proc/sys/net/core", "proc/sys/net/ipv4"
    return {
        "interfaces": {name: _interface(files, name) for name in sorted(described)},
        "not_described": len(names) - len(described),
        "infiniband": _infiniband(files),
        "congestion_control": files.line(f"{ipv4}/tcp_congestion_control"),
        "rmem_max_bytes": files.number(f"{core}/rmem_max"),
        "wmem_max_bytes": files.number(f"{core}/wmem_max"),
    }


def _is_hardware(files: KernelFiles, name: str) -> bool:
    return files.exists(f"sys/class/net/{name}/device")


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
        for device in files.names(base)[:_MOST]
        for port in files.names(f"{base}/{device}/ports")}
