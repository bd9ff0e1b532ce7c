"""The store of the workers: on the address that was chosen, and on no other."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hpcbench.backends.groups import open_store
from hpcbench.errors import CaseError
from hpcbench.launch.communicator import listener_on

LOOPBACK, OTHER_LOOPBACK, NOT_OURS = "127.0.0.1", "127.0.0.2", "192.0.2.1"
"""Linux answers on all of 127.0.0.0/8; the last one is kept for documents (RFC 5737)."""


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize("name", [LOOPBACK, "localhost"])
def test_it_listens_on_the_chosen_address_alone(name: str) -> None:
    store = open_store(listener_on(name, (0,)), 10.0)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert answers(name, store.port) and not answers(OTHER_LOOPBACK, store.port)


def test_an_address_that_sends_on_to_us_is_no_error() -> None:
    store = open_store(listener_on(NOT_OURS, (0,)), 10.0)
    assert answers(LOOPBACK, store.port) and answers(OTHER_LOOPBACK, store.port)


def test_a_port_in_use_is_passed_over_or_reported() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        assert open_store(listener_on(LOOPBACK, (port, 0)), 10.0).port != port
        with pytest.raises(CaseError, match=f"no free port in {port}..{port} .* in use"):
            open_store(listener_on(LOOPBACK, (port,)), 10.0)


def test_an_address_that_does_not_resolve_is_reported_as_one() -> None:
    with pytest.raises(CaseError, match=r"'nowhere\.invalid' does not resolve here"):
        open_store(listener_on("nowhere.invalid", (0, 0, 0)), 10.0)


def test_a_store_that_does_not_start_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses a socket of another port than it is told; with libuv it leaves it open."""
    def store(host: str, port: int, **how: Any) -> dist.TCPStore:
        return real(host, port + 1, **how)

    real, before = dist.TCPStore, descriptors()
    monkeypatch.setattr(dist, "TCPStore", store)
    with pytest.raises(CaseError, match=r"the store on 127\.0\.0\.1 does not start: .* bound to"):
        open_store(listener_on(LOOPBACK, (0, 0)), 10.0)
    assert sum(name.startswith("socket:") for name in descriptors() - before) == 0


def test_torch_before_2_8_takes_the_socket_without_libuv(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch 2.4.1 answers (benchmarks/results/oldest_versions.md); the rest is this torch."""
    def store(*where: Any, use_libuv: bool = True, **how: Any) -> dist.TCPStore:
        if use_libuv:
            raise NotImplementedError("The libuv TCPStore backend does not support ... listen fd")
        return real(*where, use_libuv=False, **how)

    real = dist.TCPStore
    monkeypatch.setattr(dist, "TCPStore", store)
    opened = open_store(listener_on(LOOPBACK, (0,)), 10.0)
    opened.set("key", "value")
    assert opened.get("key") == b"value" and not answers(OTHER_LOOPBACK, opened.port)


def descriptors() -> set[str]:
    """Return what this process has open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            found.add(str(path.readlink()))
    return found
