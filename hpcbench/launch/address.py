"""The address and interface at which the workers of a job meet."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import psutil

from hpcbench.errors import LaunchError

LOOPBACK = "127.0.0.1"


def rendezvous_address(
    nodes: Sequence[str], address: str | None, interface: str | None,
) -> str:
    """Return the address of this machine that all workers can reach (called on rank 0).

    One node meets on loopback; several nodes need an address that is not loopback. Raises
    LaunchError if there is none, with the key that sets it.
    """
    if address:
        return _resolvable(address)
    if interface:
        return _address_of(interface)
    if len(nodes) == 1:
        return LOOPBACK
    found = _routed_address()
    if found is None or found.startswith("127."):
        raise LaunchError(
            f"{len(nodes)} nodes, but {socket.gethostname()} has only loopback addresses that "
            "its name resolves to; set launch.interface (such as eth0) or launch.address")
    return found


def socket_interface(nodes: Sequence[str], interface: str | None) -> dict[str, str]:
    """Return the variables that keep gloo on one interface: loopback when there is one node."""
    name = interface or (_loopback_name() if len(nodes) == 1 else None)
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


def _resolvable(address: str) -> str:
    try:
        socket.getaddrinfo(address, None)
    except OSError as error:
        raise LaunchError(f"launch.address: {address!r} does not resolve on "
                          f"{socket.gethostname()}: {error}") from error
    return address


def _address_of(interface: str) -> str:
    addresses = psutil.net_if_addrs()
    if interface not in addresses:
        raise LaunchError(f"launch.interface: no interface {interface!r} on "
                          f"{socket.gethostname()}; there are {', '.join(sorted(addresses))}")
    for entry in addresses[interface]:
        if entry.family == socket.AF_INET:
            return str(entry.address)
    raise LaunchError(f"launch.interface: {interface!r} on {socket.gethostname()} has no IPv4 "
                      "address")


def _routed_address() -> str | None:
    """Return this host's address by its own name, else that of the first real interface."""
    try:
        by_name = socket.gethostbyname(socket.gethostname())
    except OSError:
        by_name = LOOPBACK
    if not by_name.startswith("127."):
        return by_name
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family == socket.AF_INET and not str(entry.address).startswith("127."):
                return str(entry.address)
    return None


def _loopback_name() -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(str(entry.address) == LOOPBACK for entry in entries):
            return str(name)
    return None
