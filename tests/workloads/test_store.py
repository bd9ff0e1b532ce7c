"""The store of the workers: on the address that was chosen, and on no other."""

from __future__ import annotations

import socket

import pytest

from hpcbench.backends.store import open_store
from hpcbench.errors import CaseError

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
    store = open_store(name, (0,), 10.0)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert answers(name, store.port) and not answers(OTHER_LOOPBACK, store.port)


def test_an_address_that_sends_on_to_us_is_no_error() -> None:
    store = open_store(NOT_OURS, (0,), 10.0)
    assert answers(LOOPBACK, store.port) and answers(OTHER_LOOPBACK, store.port)


def test_a_port_in_use_is_passed_over_or_told() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        assert open_store(LOOPBACK, (port, 0), 10.0).port != port
        with pytest.raises(CaseError, match=f"no free port in {port}..{port} .* in use"):
            open_store(LOOPBACK, (port,), 10.0)
