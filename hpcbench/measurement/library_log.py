"""How NCCL and UCC carry a case out, by their logs: algorithm, protocol, channels, transport.

They log it on request only, and a case that prints for every call measures its own logging:

- NCCL with ``NCCL_DEBUG=INFO``: channels and transports when a communicator is made and connected;
  with ``NCCL_DEBUG_SUBSYS=INIT,TUNING`` besides, on rank 0 of the communicator, algorithm and
  protocol of every call: by number since 2.20, by name and with channels since 2.24
  (src/enqueue.cc). Output to ``NCCL_DEBUG_FILE`` is not read.
- UCC with ``UCC_COLL_TRACE=info``: the layers of every call, on rank 0 (src/core/ucc_coll.c); UCX
  with ``UCX_LOG_LEVEL=info``: the transports of each connection (src/ucp/core/ucp_worker.c)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcbench.trace.schema import LibraryChoices, different

_LONGEST_LINE = 4096
"""Longer ones are nothing that a library logs of itself (NCCL's and UCS's have up to 1024)."""
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""NCCL's numbers (src/include/nccl_common.h and device.h), named as it names them since 2.24."""
_CALL = re.compile(
    r"Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,4})\.\.(?P<high>\d{1,4})\})?")
_OTHER_CALL = re.compile(
    r"\[(?P<kind>Symmetric|Copy Engine|Hierarchical CE)\]: \d+ Bytes -> "
    r"(?:Kernel (?P<kernel>\w+) nchannels (?P<channels>\d{1,4}))?")
_MADE = re.compile(r"NCCL INFO (\d{1,4}) coll channels,|NCCL INFO Channel \d+/(\d{1,4}) :  *\d+ ")
_VIA = re.compile(r"NCCL INFO (?:Channel|CollNet) [^\n]*? via ([^\n]+)")
_NETWORK = re.compile(r"((?:COLL)?NET/[^/\n]+)/\d+(?:\(\d+\))?(.*)")
_UCC_CALL = re.compile(r"coll_init: [^\n]*; (\w+) \{([^}\n]*)\}, team_id")
_UCX = re.compile(
    r"(?:(self|intra-node|inter-node) cfg#\d+ |ep_cfg\[\d+\]: )[^\n]*?tag\(([^)\n]+)\)")


def read_choices(case_text: str, earlier: LibraryChoices | None = None) -> LibraryChoices:
    """Return the choices that a worker's output ``case_text`` for one case shows. ``earlier`` are
    those of cases before it on the process group: its first case makes the connections."""
    earlier = earlier or LibraryChoices()
    log = "\n".join(line for line in case_text.split("\n") if len(line) <= _LONGEST_LINE)
    called = list(_calls(log))
    used = different(call.channels for call in called)
    return LibraryChoices(
        algorithm=different(call.algorithm for call in called),
        protocol=different(call.protocol for call in called),
        channels=used or _made(log) or tuple(
            text for text in earlier.channels if text.startswith("up to")),
        transport=different([earlier.transport, _transports(log)]))


def _calls(text: str) -> Iterator[LibraryChoices]:
    for call in _CALL.finditer(text):
        channels = (str(int(call["high"]) - int(call["low"]) + 1),) if call["high"] else ()
        yield LibraryChoices((_name(call["algorithm"], _ALGORITHMS),),
                             (_name(call["protocol"], _PROTOCOLS),), channels)
    for call in _OTHER_CALL.finditer(text):
        kernel = f" {call['kernel']}" if call["kernel"] else ""
        yield LibraryChoices((call["kind"] + kernel,),
                             channels=(call["channels"],) if call["channels"] else ())


def _name(text: str, names: tuple[str, ...]) -> str:
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else f"number {text}"
    return text.upper()


def _made(text: str) -> tuple[str, ...]:
    matches = [match[1] or match[2] for match in _MADE.finditer(text)]
    return (f"up to {int(matches[-1])}",) if matches else ()


def _transports(text: str) -> tuple[str, ...]:
    nccl = ((_kind(match[1].strip()),) for match in _VIA.finditer(text))
    ucc = ((f"{match[1]}/{match[2]}",) for match in _UCC_CALL.finditer(text))
    ucx = ((match[2],) for match in _UCX.finditer(text) if match[1] != "self")
    return different([*nccl, *ucc, *ucx])


def _kind(transport: str) -> str:
    transport = transport.partition(" comm 0x")[0]  # RCCL names the communicator
    if network := _NETWORK.fullmatch(transport):
        return network[1] + network[2]
    if transport.startswith("P2P/indirect"):
        return "P2P/indirect"
    return "SHM" if transport == "direct shared memory" else transport
