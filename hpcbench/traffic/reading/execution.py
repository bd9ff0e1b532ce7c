"""PyTorch execution traces: nodes ``record_param_comms`` of one rank, with roots, without times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbench.errors import FileError
from hpcbench.formats.reading.source import ForeignFile
from hpcbench.operations.collectives import collectives
from hpcbench.operations.traffic import SEND_RECV
from hpcbench.texts import from_json
from hpcbench.traffic.calls import OWN, KnownGroup, RankCall, RankRecord, collective_of, dtype_of
from hpcbench.traffic.reading.flight import ranks_of
from hpcbench.traffic.reading.stream import StreamedList

PROGRAM = "PyTorch execution trace"
_COMMS, _GROUPS = "record_param_comms", "## process_group:init ##"
_SCHEMAS = re.compile(r"1\.[01]\.\d{1,2}(-.{0,30})?")
_LONG = 10


def read(file: ForeignFile) -> RankRecord:
    """Return the record of a rank. Raises FileError for another schema or without its keys."""
    nodes = StreamedList(file, "nodes")
    comms, lists = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for node in nodes:
        name = node.get("name") if isinstance(node, Mapping) else None
        if name == _COMMS:
            comms.append(node)
        elif name == _GROUPS:
            lists.append(node)
    schema = str(nodes.others.get("schema", ""))
    if _SCHEMAS.fullmatch(schema) is None:
        raise FileError(f"{file.name}: schema {schema[:30] or 'unknown'} of execution traces; "
                        "known: 1.0 and 1.1")
    try:
        return _record(file, schema, sorted(comms, key=lambda node: int(node["id"])), lists)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FileError(f"{file.name}: a collective without the keys of execution traces: "
                        f"{type(error).__name__} {str(error)[:60]}") from error


def _record(
    file: ForeignFile, schema: str, comms: Sequence[Mapping[str, Any]],
    lists: Sequence[Mapping[str, Any]],
) -> RankRecord:
    groups: dict[str, KnownGroup] = {}
    calls = []
    for node in comms:
        values, attrs = node["inputs"]["values"], _attrs(node)
        call = _call(values, attrs)
        if call is not None:
            calls.append(call)
            groups.setdefault(call.group, _group(values, attrs))
    for node in lists:
        for one in from_json(str(node["inputs"]["values"][0])):
            name, ranks = str(one["pg_name"]), ranks_of(one.get("ranks"))
            if name in groups and ranks:
                groups[name] = KnownGroup(groups[name].description, ranks, len(ranks))
    sizes = [one.size or 0 for one in groups.values()]
    return RankRecord(file.name, PROGRAM, schema, None, max(sizes, default=0) or None, calls,
                      groups, notes=["execution traces have no durations and no gaps"])


def _attrs(node: Mapping[str, Any]) -> dict[str, Any]:
    return {str(one["name"]): one.get("value") for one in node.get("attrs", ())}


def _call(values: Sequence[Any], attrs: Mapping[str, Any]) -> RankCall | None:
    """Return a call of a node's inputs, with and without tensors in front; None for others."""
    rest = values[1:] if len(values) >= _LONG else values
    number, names, rank, name = rest[0], rest[1], rest[2], str(rest[3])
    collective = collective_of(str(attrs.get("collective_name") or name))
    if not collective:
        return None
    sequence, is_p2p = number if isinstance(number, (list, tuple)) else (number, False)
    spec = collectives().get(collective)
    has_root = spec is not None and spec.has_root and collective != SEND_RECV
    n_in, n_out = attrs.get("in_msg_nelems"), attrs.get("out_msg_nelems")
    return RankCall(
        collective, str(names[0] if isinstance(names, (list, tuple)) else names),
        None if is_p2p or collective == SEND_RECV else int(sequence),
        dtype=dtype_of(str(attrs["dtype"])) if attrs.get("dtype") else None,
        root=int(rank) if has_root else None,
        elements_in=_tensors(values[0]) if n_in is None else int(n_in),
        elements_out=None if n_out is None else int(n_out),
        splits_in=ranks_of(rest[4]) or None, splits_out=ranks_of(rest[5]) or None,
        pair=_pair(name, int(rank)) if collective == SEND_RECV else None)


def _pair(name: str, peer: int) -> tuple[int, int]:
    return (OWN, peer) if name.startswith("send") else (peer, OWN)


def _tensors(listed: Any) -> int | None:
    """Return the elements of tensors: each is [id, storage, offset, elements, bytes, device]."""
    rows = listed if isinstance(listed, (list, tuple)) else ()
    if len(rows) >= 6 and isinstance(rows[3], int):
        rows = [rows]
    counts = [row[3] for row in rows if isinstance(row, (list, tuple)) and len(row) >= 6]
    return sum(map(int, counts)) if counts else None


def _group(values: Sequence[Any], attrs: Mapping[str, Any]) -> KnownGroup:
    rest = values[1:] if len(values) >= _LONG else values
    names = rest[1]
    start, stride, size = int(rest[6]), int(rest[7]), int(rest[8])
    ranks = tuple(range(start, start + size * stride, stride)) if stride and size else None
    description = str(names[1]) if isinstance(names, (list, tuple)) and len(names) > 1 else ""
    return KnownGroup(description or str(attrs.get("pg_desc", "")), ranks, size or None)
