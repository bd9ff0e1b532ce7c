"""PyTorch execution traces: nodes ``record_param_comms`` of one rank, with roots, without times.

Schema 1.0.1 has values of nodes as plain lists, later ones have them as objects. From 1.1.0 on
attributes repeat what values say; before, sizes and types are those of the tensors alone. torch
before 2.2 names a group by its address."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcbench.errors import NOT_AS_WRITTEN, FileError
from hpcbench.interop.formats.reading.source import ForeignFile, StreamedList
from hpcbench.interop.traffic import calls as recorded
from hpcbench.operations.collectives import collectives
from hpcbench.operations.traffic import SEND_RECV
from hpcbench.texts import from_json

PROGRAM = "PyTorch execution trace"
_COMMS, _GROUPS = "record_param_comms", "## process_group:init ##"
_SCHEMA = re.compile(r"(1)\.(\d{1,2})\.(\d{1,2})(?:-.{0,30})?")
_KNOWN = ((1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 0, 4), (1, 1, 0), (1, 1, 1))
_LEAST_ADDRESS, _BY_ADDRESS = 2**20, "all"
_TYPE = re.compile(r"Tensor\(([^()]+)\)")


def read(file: ForeignFile) -> recorded.RankRecord:
    """Return the record of a rank. Raises FileError for another schema."""
    nodes = StreamedList(file, "nodes")
    comms, lists = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for node in nodes:
        name = node.get("name") if isinstance(node, Mapping) else None
        if name == _COMMS and type(node.get("id")) is int:
            comms.append(node)
            recorded.check_count(file.name, len(comms))
        elif name == _GROUPS:
            lists.append(node)
        elif str(name).startswith("gloo:"):
            file.left_out.add("calls of gloo, of which execution traces have no arguments: "
                              "`hpcbench record` has them")
    schema = str(nodes.others.get("schema", ""))
    version = _SCHEMA.fullmatch(schema)
    number = tuple(map(int, version.groups())) if version else ()
    if number not in _KNOWN and number[:2] != (1, 1):
        raise FileError(f"{file.name}: schema {schema[:30] or 'unknown'} of execution traces; "
                        "known: 1.0.1 to 1.0.4, 1.1.0 and 1.1.1")
    record = _record(file, schema, sorted(comms, key=lambda node: recorded.exact(node["id"])),
                     _listed(file, lists))
    if number > _KNOWN[-1]:
        record.notes.append(f"{file.name}: schema {schema} is newer than 1.1.1, the newest known")
    return record


class _Values(NamedTuple):
    """The values of a node: number and group may be pairs, [number, whether a message] and [name,
    description]; rank is the root or the peer; place is start, stride and size of the group."""

    tensors: Sequence[Any]
    results: Sequence[Any]
    dtype: str
    number: Any
    group: Any
    rank: Any
    name: str
    splits_in: Any
    splits_out: Any
    place: Sequence[Any]
    attrs: Mapping[str, Any]

    @property
    def group_name(self) -> str:
        name = self.group[0] if isinstance(self.group, (list, tuple)) else self.group
        return _BY_ADDRESS if _is_address(name) else str(name)


def _is_address(name: Any) -> bool:
    return isinstance(name, int) and name >= _LEAST_ADDRESS


def _values(node: Mapping[str, Any]) -> _Values:
    """Return a node's values: tensors stand in front of those that have any."""
    given, results, types = node["inputs"], node.get("outputs"), node.get("input_types")
    if isinstance(given, Mapping):
        given, types = given["values"], given.get("types")
    if isinstance(results, Mapping):
        results = results.get("values")
    tensors, rest = (given[0], given[1:]) if isinstance(given[4], str) else ((), given)
    attrs = {str(one["name"]): one.get("value") for one in node.get("attrs", ())}
    match = _TYPE.search(str(types[0])) if tensors and types else None
    number, group, rank, name, splits_in, splits_out = rest[:6]
    return _Values(
        [*_tensors(tensors)], [*_tensors(results)],
        str(attrs.get("dtype") or (match[1] if match else "")), number, group, rank,
        str(attrs.get("collective_name") or name), splits_in, splits_out, rest[6:], attrs)


def _tensors(listed: Any) -> Iterator[Sequence[Any]]:
    """Yield tensors in lists of any depth: each is [id, storage, offset, elements, bytes, device].
    """
    if isinstance(listed, (list, tuple)):
        if len(listed) >= 6 and isinstance(listed[5], str):
            yield listed
        else:
            for item in listed:
                yield from _tensors(item)


def _record(
    file: ForeignFile, schema: str, comms: Sequence[Mapping[str, Any]],
    listed: Mapping[str, Mapping[str, Any]],
) -> recorded.RankRecord:
    groups, calls, addresses = dict[str,
                                    recorded.KnownGroup](), list[recorded.RankCall](), set[int]()
    for node in comms:
        try:
            values = _values(node)
            row = listed.get(values.group_name, {})
            call = _call(values, str(row.get("backend_config") or ""))
            if call is not None:
                groups.setdefault(call.group, _group(values, row))
                calls.append(call)
                addresses |= {values.group} if _is_address(values.group) else set()
        except NOT_AS_WRITTEN:
            file.left_out.add("collectives without the keys of execution traces")
    if len(addresses) > 1:
        raise FileError(f"{file.name}: schema {schema} names its {len(addresses)} groups by "
                        "addresses, which differ between ranks: record with torch 2.2 or newer")
    sizes = [one.size or 0 for one in groups.values()]
    sizes += [recorded.exact(row.get("group_size") or 0) for row in listed.values()]
    return recorded.RankRecord(file.name, PROGRAM, schema, None, max(sizes, default=0) or None,
                               calls,
                               groups, notes=["execution traces have no durations and no gaps"])


def _listed(file: ForeignFile, nodes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what nodes of groups have of each, by name; long texts are cut off and left out."""
    groups = dict[str, dict[str, Any]]()
    for node in nodes:
        try:
            values = node["inputs"]
            values = values["values"] if isinstance(values, Mapping) else values
            groups |= {str(one["pg_name"]): one for one in from_json(str(values[0]))}
        except NOT_AS_WRITTEN:
            file.left_out.add("lists of groups that are cut off")
    return groups


def _call(values: _Values, config: str) -> recorded.RankCall | None:
    """Return the call of a node; None for others."""
    collective = recorded.collective_of(values.name)
    if not collective:
        return None
    number = values.number
    sequence, is_p2p = number if isinstance(number, (list, tuple)) else (number, False)
    spec = collectives().get(collective)
    has_root = spec is not None and spec.has_root and collective != SEND_RECV
    counts = [_elements(values.attrs.get(name), tensors) for name, tensors in (
        ("in_msg_nelems", values.tensors), ("out_msg_nelems", values.results))]
    splits = [
        tuple(recorded.exact(one[3]) for one in tensors)
        if collective == "all_to_all" and not listed and len(tensors) > 1
        else recorded.splits_of(listed, count)
        for listed, count, tensors in zip(
            (values.splits_in, values.splits_out), counts, (values.tensors, values.results),
            strict=True)]
    tensors = [*values.tensors, *values.results]
    return recorded.RankCall(
        collective, values.group_name,
        None if is_p2p or collective == SEND_RECV else recorded.exact(sequence),
        dtype=recorded.dtype_of(values.dtype) if values.dtype else None,
        root=recorded.exact(values.rank) if has_root else None,
        elements_in=counts[0], elements_out=counts[1],
        splits_in=splits[0], splits_out=splits[1],
        size_bytes=None if values.dtype or not tensors else max(
            count or 0 for count in counts) * recorded.exact(tensors[0][4]),
        backend=recorded.backend_of(config,
                                    str(tensors[0][5]).partition(":")[0] if tensors else ""),
        pair=_pair(values.name, recorded.exact(values.rank)) if collective == SEND_RECV else None)


def _elements(attribute: Any, tensors: Sequence[Any]) -> int | None:
    if attribute is not None:
        return recorded.exact(attribute)
    return sum(recorded.exact(one[3]) for one in tensors) if tensors else None


def _pair(name: str, peer: int) -> tuple[int, int]:
    return (recorded.OWN, peer) if name.startswith("send") else (peer, recorded.OWN)


def _group(values: _Values, row: Mapping[str, Any]) -> recorded.KnownGroup:
    """Return a group as its list has it, where all ranks are none, else by start and stride."""
    size = recorded.exact(row.get("group_size") or (values.place[-1] if values.place else 0))
    ranks = recorded.ranks_of(row.get("ranks")) or (recorded.strided(0, 1, size) if row else ())
    if not ranks and len(values.place) == 3:
        ranks = recorded.strided(*map(int, values.place))
    described = values.group[1:] if isinstance(values.group, (list, tuple)) else ()
    return recorded.KnownGroup(str(next(iter(described), "") or values.attrs.get("pg_desc", "")),
                               ranks or None, size or None)
