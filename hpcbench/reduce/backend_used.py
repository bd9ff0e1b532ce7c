"""Whether a case used the backend it requested, as far as the logs of the libraries show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcbench.plan.case import Case
from hpcbench.reduce.results import Finding
from hpcbench.trace.schema import Header

_ACTIVE = "ACTIVE"


def other_backend(
    backend: str, choices: Mapping[str, str], headers: Sequence[Header],
) -> str | None:
    """Return what carried the case instead of its backend; None if no log shows any.

    ``choices`` is `trace.library_choices.LibraryChoices.to_json`.
    """
    used = choices["transport"].split(" + ")
    if layer := backend.partition("ucc/tl/")[2]:
        layers = [text for text in used if "TL_" in text]
        if layers and not any(f"TL_{layer.upper()}" in text for text in layers):
            return f"{backend} was asked for, UCC used {', '.join(layers)}"
    if backend == "nccl" and any(text.startswith("NET/Socket") for text in used):
        ports = sorted({port for header in headers for port in _active_ports(header)})
        if ports:
            return (f"NCCL used NET/Socket, although InfiniBand or RoCE is up ({', '.join(ports)}"
                    "): a fallback; NCCL_DEBUG=INFO tells why")
    return None


def backend_findings(
    choices_by_case: Iterable[tuple[Case, Mapping[str, str]]], headers: Sequence[Header],
) -> Iterator[Finding]:
    """Yield one note (HB131) for each way in which cases did not use the requested backend."""
    labels: dict[str, list[str]] = {}
    for case, choices in choices_by_case:
        if text := other_backend(case.backend, choices, headers):
            labels.setdefault(text, []).append(case.label)
    for text, cases in labels.items():
        yield Finding("HB131", "note", f"{text} ({len(cases)} case{'s' if len(cases) > 1 else ''}, "
                      f"first {cases[0]}): their times are of what was used")


def _active_ports(header: Header) -> list[str]:
    ports = header.environment.get("network", {}).get("infiniband", {})
    return [name for name, port in ports.items() if _ACTIVE in str(port.get("state"))]
