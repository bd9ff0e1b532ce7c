"""The address at which the workers of a job meet, and the one network interface they all use."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcbench.config.schema import Launch
from hpcbench.errors import LaunchError
from hpcbench.launch.ranks.agreement import on_all, on_root
from hpcbench.launch.ranks.communicator import Communicator

LOOPBACK = "127.0.0.1"
_REMEDY = "set launch.interface (such as eth0) or launch.address"
_SOCKET_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_ACTIVE = "4: ACTIVE"


@dataclass(frozen=True, slots=True)
class Network:
    """Where rank 0 is reached (``address``), and over which interface of this rank's machine."""

    address: str
    interface: str | None


def choose_network(
    comm: Communicator, nodes: Sequence[str], launch: Launch, environ: Mapping[str, str],
) -> Network:
    """Return the network of a job whose ranks are on ``nodes``; collective.

    Rank 0 chooses the address; every rank takes the interface that leads there, unless
    ``launch.interface`` names one. Raises AgreedError for loopback between several nodes, for an
    interface that a rank's machine lacks, and for an address that it has no way to.
    """
    others = comm.allgather(_addresses() if len(nodes) > 1 else [])[1:]
    elsewhere = {address for addresses in others for address in addresses
                 if addresses != _addresses()}
    address = str(on_root(comm, lambda: rendezvous_address(
        nodes, launch.address, launch.interface, elsewhere)))
    chosen = on_all(comm, "choosing the network interface", lambda: own_interface(
        nodes, launch.interface, address, environ))
    return Network(address, chosen[comm.rank])


def rendezvous_address(
    nodes: Sequence[str], address: str | None, interface: str | None,
    elsewhere: Collection[str] = (),
) -> str:
    """Return the address of this machine that all workers can reach (called on rank 0).

    One node meets on loopback. Several nodes need an address that is not loopback and that no
    other node has, too (``elsewhere``), as containers' bridges do. Raises
    LaunchError if there is none, with the key that sets it.
    """
    if address or interface:
        chosen = _resolved(address) if address else _address_of(str(interface))
        if len(nodes) > 1 and _is_loopback(chosen):
            key = f"launch.address: {address}" if address else f"launch.interface: {interface}"
            raise LaunchError(f"{key} is loopback, which reaches only one of the {len(nodes)} "
                              "nodes; name the network that connects them")
        return address or chosen
    if len(nodes) == 1:
        return LOOPBACK
    routed = _routed_address(elsewhere)
    if routed is None:
        raise LaunchError(
            f"{len(nodes)} nodes, but {socket.gethostname()} has only loopback addresses that "
            f"its name resolves to; {_REMEDY}")
    return routed


def own_interface(
    nodes: Sequence[str], interface: str | None, address: str, environ: Mapping[str, str],
) -> str | None:
    """Return the interface of this machine over which the job's sockets go.

    With one node it is loopback. With several it is the one that leads to ``address``. Raises
    LaunchError if that is loopback, or if a variable of ``environ`` asks for it.
    """
    loopback = _interface_with(LOOPBACK)
    if len(nodes) == 1:
        return interface or loopback
    for name in _SOCKET_VARIABLES:
        if loopback and environ.get(name, "").lstrip("=") == loopback:
            raise LaunchError(f"{name}={environ[name]} is loopback, which reaches only one of the "
                              f"{len(nodes)} nodes: unset it, or name the network between them")
    if interface:
        _address_of(interface)
        return interface
    own = own_address_towards(address)
    if _is_loopback(own):
        raise LaunchError(f"{address}, the address of rank 0, is loopback on "
                          f"{socket.gethostname()}; {_REMEDY}")
    return _interface_with(own)


def socket_variables(interface: str | None) -> dict[str, str]:
    """Return the variables that keep gloo, nccl and ucx to one interface, for worker processes.

    NCCL takes prefixes, but for ``=``. UCX's list is also one of RDMA devices, which are not meant
    here: the active ones stay in it. It is not kept to loopback, where it has shared memory.
    """
    if interface is None:
        return {}
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    if interface != _interface_with(LOOPBACK):
        variables["UCX_NET_DEVICES"] = ",".join([interface, *_rdma_devices()])
    return variables


def _rdma_devices(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    """Return the active ports of RDMA devices in UCX's words: ``mlx5_0:1``."""
    states = sorted(root.glob("*/ports/*/state"))
    return [f"{state.parents[2].name}:{state.parent.name}" for state in states
            if state.read_text().strip() == _ACTIVE]


def _resolved(address: str) -> str:
    try:
        return str(socket.getaddrinfo(address, None)[0][4][0])
    except OSError as error:
        raise LaunchError(f"launch.address: {address!r} does not resolve on "
                          f"{socket.gethostname()}: {error}") from error


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


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


def _addresses() -> list[str]:
    """Return the IPv4 addresses of this machine, those of loopback left out."""
    return [str(entry.address) for entries in psutil.net_if_addrs().values() for entry in entries
            if entry.family == socket.AF_INET and not _is_loopback(str(entry.address))]


def _routed_address(elsewhere: Collection[str]) -> str | None:
    """Return this host's address by its own name, else that of the first real interface."""
    try:
        by_name = socket.gethostbyname(socket.gethostname())
    except OSError:
        by_name = LOOPBACK
    if not _is_loopback(by_name):
        return by_name
    return next((address for address in _addresses() if address not in elsewhere), None)


def own_address_towards(address: str) -> str:
    """Return the address that packets to ``address`` would leave from. Raises LaunchError."""
    try:
        family, *_, where = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # of a datagram socket: looks up the route, sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(f"{socket.gethostname()} has no way to {address}, the address of rank 0: "
                          f"{error.strerror or error}; {_REMEDY}") from error


def _interface_with(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(str(entry.address).partition("%")[0] == address for entry in entries):
            return str(name)
    return None
