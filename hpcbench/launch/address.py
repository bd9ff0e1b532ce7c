"""The address at which the workers of a job meet, and the one network interface they all use."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from hpcbench.config.schema import Launch
from hpcbench.errors import CaseError, ExitCode, LaunchError
from hpcbench.launch.communicator import (
    ADDRESS_REMEDY,
    Communicator,
    listener_on,
    own_address_towards,
)
from hpcbench.launch.session import AgreedError, RankIdentity, on_all, on_root
from hpcbench.records import dataclass

_LOOPBACKS = ("127.0.0.1", "::1")
_MEETING_S, _ACCEPT_S = 5.0, 0.05
"""How long a node tries to reach rank 0, and how soon rank 0 sees that all have tried."""
_SOCKET_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_ACTIVE = "4: ACTIVE"


@dataclass(frozen=True, slots=True)
class Network:
    """Where rank 0 is reached (``address``), and over which interface of this rank's machine."""

    address: str
    interface: str | None


def choose_network(
    comm: Communicator, topology: RankIdentity, launch: Launch, environ: Mapping[str, str],
) -> Network:
    """Return the network of a job; collective.

    Rank 0 chooses the address; every rank takes the interface that leads there, or
    ``launch.interface``. One rank of each node then connects to rank 0 as workers will. Raises
    AgreedError for loopback between nodes, a missing interface, or an address that does not reach
    rank 0."""
    nodes = topology.nodes
    others = comm.allgather(own_addresses() if len(nodes) > 1 else [])[1:]
    elsewhere = {address for addresses in others for address in addresses
                 if addresses != own_addresses()}
    address = str(on_root(comm, lambda: rendezvous_address(
        nodes, launch.address, launch.interface, elsewhere)))
    chosen = on_all(comm, "choosing the network interface", lambda: own_interface(
        nodes, launch.interface, address, environ))
    if launch.address or len(nodes) > 1:
        _try_to_meet(comm, topology, address, launch)
    return Network(address, chosen[comm.rank])


def _try_to_meet(comm: Communicator, topology: RankIdentity, address: str, launch: Launch) -> None:
    """Have one rank of each node connect to rank 0: a wrong address would cost each case its time
    limit. Collective."""
    limit_s = min(launch.timeout_s, _MEETING_S)
    with contextlib.ExitStack() as stack:
        port, greeting = on_root(
            comm, lambda: stack.enter_context(_greeting(address, launch.port)))
        problem = _missed(address, int(port), bytes.fromhex(greeting), limit_s) \
            if topology.local_rank == 0 else ""
        of_ranks = comm.allgather([problem, topology.hostname, own_addresses()])
    failed = [(rank, node, why) for rank, (why, node, _) in enumerate(of_ranks) if why]
    if not failed:
        return
    rank, node, why = failed[0]
    host, own = of_ranks[0][1:]
    more = f" and from {len(failed) - 1} more nodes" if len(failed) > 1 else ""
    key = "launch.address: " if launch.address else ""
    remedy = (f"leave launch.address out, or name an address of {host}: {', '.join(own) or 'none'}"
              if launch.address else ADDRESS_REMEDY)
    raise AgreedError(f"{key}{address} port {port} does not lead to rank 0 on {host} from rank "
                      f"{rank} on {node}{more}: {why}; {remedy}", ExitCode.USAGE)


@contextlib.contextmanager
def _greeting(address: str, ports: tuple[int, int]) -> Iterator[tuple[int, str]]:
    """Give the port on which everyone who connects gets a greeting, and the greeting in hex."""
    try:
        listener = listener_on(address, range(ports[0], ports[1] + 1))
    except CaseError as error:
        raise LaunchError(str(error)) from error
    greeting, over = secrets.token_bytes(16), threading.Event()

    def greet() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):  # also that nobody comes for a while
                guest, _ = listener.accept()
                with guest:
                    guest.sendall(greeting)

    with listener:
        listener.settimeout(_ACCEPT_S)
        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1]), greeting.hex()
        finally:
            over.set()
            thread.join()


def _missed(address: str, port: int, greeting: bytes, limit_s: float) -> str:
    """Return why the greeting cannot be received at this address, or "" if it can."""
    try:
        with socket.create_connection((address, port), limit_s) as connection:
            heard = connection.recv(len(greeting), socket.MSG_WAITALL)
    except TimeoutError:
        return f"no answer in {limit_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return "" if heard == greeting else "another program answers there"


def rendezvous_address(
    nodes: Sequence[str], address: str | None, interface: str | None,
    elsewhere: Collection[str] = (),
) -> str:
    """Return the address of this machine that all workers can reach (called on rank 0).

    Loopback for one node; else one that is not loopback and that no other node has, too
    (``elsewhere``), as containers' bridges do. Raises LaunchError."""
    if address or interface:
        chosen = _resolved(address) if address else _address_of(str(interface))
        if len(nodes) > 1 and _is_loopback(chosen):
            key = f"launch.address: {address}" if address else f"launch.interface: {interface}"
            raise LaunchError(f"{key} is loopback, which reaches only one of the {len(nodes)} "
                              "nodes; name the network that connects them")
        return address or chosen
    if len(nodes) == 1:
        return _loopback()
    routed = _routed_address(elsewhere)
    if routed is None:
        raise LaunchError(
            f"{len(nodes)} nodes, but {socket.gethostname()} has only loopback addresses that "
            f"its name resolves to; {ADDRESS_REMEDY}")
    return routed


def own_interface(
    nodes: Sequence[str], interface: str | None, address: str, environ: Mapping[str, str],
) -> str | None:
    """Return the interface of this machine for the job's sockets: loopback for one node, else the
    one that leads to ``address``.

    Raises LaunchError if that is loopback, or if a variable of ``environ`` names it."""
    loopback = _interface_with(_loopback())
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
                          f"{socket.gethostname()}; {ADDRESS_REMEDY}")
    return _interface_with(own)


def socket_variables(interface: str | None) -> dict[str, str]:
    """Return the variables that keep gloo, nccl and ucx to one interface, for worker processes.

    NCCL takes prefixes, but for ``=``. UCX's list keeps the active RDMA devices; it is not limited
    to loopback, where it has shared memory."""
    if interface is None:
        return {}
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    if interface != _interface_with(_loopback()):
        variables["UCX_NET_DEVICES"] = ",".join([interface, *_rdma_devices()])
    return variables


def _rdma_devices(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    """Return the active ports of RDMA devices in UCX's form: ``mlx5_0:1``."""
    states = sorted(root.glob("*/ports/*/state"))
    return [f"{state.parents[2].name}:{state.parent.name}" for state in states
            if state.read_text().strip() == _ACTIVE]


def _resolved(address: str) -> str:
    try:
        return str(socket.getaddrinfo(address, None)[0][4][0])
    except OSError as error:
        raise LaunchError(f"launch.address: {address!r} does not resolve on "
                          f"{socket.gethostname()}: {error}") from error


def _loopback() -> str:
    """Return the address of loopback: that of IPv4 if this machine has it."""
    return next((address for address in _LOOPBACKS if _interface_with(address)), _LOOPBACKS[0])


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _address_of(interface: str) -> str:
    addresses = psutil.net_if_addrs()
    if interface not in addresses:
        raise LaunchError(f"launch.interface: no interface {interface!r} on "
                          f"{socket.gethostname()}; there are {', '.join(sorted(addresses))}")
    usable = _usable(addresses[interface])
    if not usable:
        raise LaunchError(f"launch.interface: {interface!r} on {socket.gethostname()} has no "
                          "address that other nodes can use (IPv4, or IPv6 beyond its own link); "
                          "name another interface, or give it one")
    return usable[0]


def _usable(entries: Sequence[Any]) -> list[str]:
    """Return the addresses of an interface, IPv4 first, without IPv6's of one link (fe80::)."""
    addresses = [(entry.family != socket.AF_INET, str(entry.address)) for entry in entries
                 if entry.family in (socket.AF_INET, socket.AF_INET6)
                 and not ipaddress.ip_address(str(entry.address).partition("%")[0]).is_link_local]
    return [address for _, address in sorted(addresses, key=lambda one: one[0])]


def own_addresses() -> list[str]:
    """Return the addresses of this machine, IPv4 first, those of loopback left out."""
    entries = [entry for some in psutil.net_if_addrs().values() for entry in some]
    return [address for address in _usable(entries) if not _is_loopback(address)]


def _routed_address(elsewhere: Collection[str]) -> str | None:
    """Return this host's address by its own name, else that of the first real interface."""
    try:
        by_name = [str(found[4][0]) for found in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM)]
    except OSError:
        by_name = []
    own = own_addresses()
    of_name = sorted((address for address in by_name if address in own), key=own.index)
    return next(iter(of_name), next(
        (address for address in own if address not in elsewhere), None))


def _interface_with(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(str(entry.address).partition("%")[0] == address for entry in entries):
            return str(name)
    return None
