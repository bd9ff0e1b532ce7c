"""SuperBench's results-summary.jsonl: a line a node, numbers by ``benchmark/metric:rank``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from hpcbench.formats.printed import Printed
from hpcbench.formats.reading.names import our_name
from hpcbench.formats.reading.nccl_json import number_of
from hpcbench.formats.reading.source import ForeignFile
from hpcbench.formats.tables import CommRow, CommTable, Half, NodeTable
from hpcbench.texts import printable

PROGRAM = "SuperBench"
MOST_METRICS = 100_000
MOST_TEXT = 80
_METRIC = re.compile(r"(?P<of>.*)/(?P<op>[A-Za-z_-]+?)_(?P<size>\d{1,18})"
                     r"_(?P<what>busbw|algbw|time)(?P<rank>:\d+)?")


def read(file: ForeignFile) -> Iterator[NodeTable]:
    """Yield the node of each line. Raises FileError for a line that is none."""
    for line in file.lines():
        if not line.text.strip():
            continue
        data = file.parsed(line.text, line.number)
        if not isinstance(data, Mapping) or not isinstance(data.get("node"), str):
            raise file.error(line.number, 'no node of SuperBench: the key "node" is missing')
        if len(data) > MOST_METRICS:
            raise file.error(line.number, f"a node of more than {MOST_METRICS} metrics")
        metrics = {}
        for name, value in data.items():
            if isinstance(value, (Printed, int)) and not isinstance(value, bool):
                number = number_of(value)
                metrics.update({} if number is None else {name: number})
        yield NodeTable(file.name, line.number, data["node"], metrics)


def other_metrics(node: NodeTable) -> int:
    """Return how many of a node's metrics are not of a collective."""
    return sum(not _of_collective(name) for name in node.metrics)


def _of_collective(name: str) -> re.Match[str] | None:
    match = _METRIC.fullmatch(name)
    return match if match and our_name(match["op"]) else None


def comm_tables(node: NodeTable) -> Iterator[CommTable]:
    """Yield a node's metrics of collectives, a table an operation and rank."""
    found: dict[tuple[str, str, str], dict[int, dict[str, Printed]]] = defaultdict(
        lambda: defaultdict(dict))
    for name, value in node.metrics.items():
        if match := _of_collective(name):
            key = (match["of"], match["op"], match["rank"] or "")
            found[key][int(match["size"])][match["what"]] = value
    for (benchmark, operation, rank), sizes in found.items():
        rows = tuple(CommRow(node.line, size, (Half(
            None, named.get("time"), named.get("algbw"), named.get("busbw")),))
            for size, named in sorted(sizes.items()))
        label = f"{benchmark} {node.node}{rank if rank != ':0' else ''}"
        yield CommTable(PROGRAM, node.path, node.line, our_name(operation), rows,
                        timed_rates=False, label=printable(label)[:MOST_TEXT])
