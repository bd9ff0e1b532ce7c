"""SuperBench's results-summary.jsonl: a line a node, numbers by ``benchmark/metric:rank``.

A metric of a collective is ``allreduce_1048576_busbw``, with a pattern of several groups
``allreduce_0_3:1048576_busbw``: the 0th step in turn, the 3rd group at a time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from hpcbench.interop.formats.reading.names import our_name
from hpcbench.interop.formats.reading.nccl_json import number_of
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.interop.formats.tables import CommRow, CommTable, NodeTable, Printed, PrintedForm
from hpcbench.texts import printable

PROGRAM = "SuperBench"
MOST_METRICS = 100_000
MOST_TEXT = 80
_METRIC = re.compile(r"(?P<of>.*)/(?P<op>[A-Za-z_-]+?)_(?:(?P<step>\d{1,9}_\d{1,9}):)?"
                     r"(?P<size>\d{1,18})_(?P<what>busbw|algbw|time)(?P<rank>:\d+)?")

_CODE = re.compile(r"return_code(?::\d+)?$")


def read(file: ForeignFile) -> Iterator[NodeTable]:
    """Yield the node of each line. A line that is none is left out, counted.

    Raises FileError for a node of too many metrics."""
    for line, data in file.records():
        if not isinstance(data, Mapping) or not isinstance(data.get("node"), str):
            file.left_out.add('lines that are no node of SuperBench, without the key "node"', line)
            continue
        if len(data) > MOST_METRICS:
            raise file.error(line, f"a node of more than {MOST_METRICS} metrics")
        metrics = {}
        for name, value in data.items():
            if name == "node":
                continue
            try:
                number = None if isinstance(value, str) else number_of(value)
            except ValueError:
                number = None
            if number is None:
                file.left_out.add("metrics of SuperBench without a number", line)
            else:
                metrics[name] = number
        yield NodeTable(file.name, line, data["node"], metrics)


def other_metrics(node: NodeTable) -> int:
    """Return how many of a node's metrics are not of a collective."""
    return sum(not _of_collective(name) for name in node.metrics)


def is_code(name: str) -> bool:
    """Return whether a metric is the return code of a benchmark."""
    return _CODE.search(name) is not None


def _of_collective(name: str) -> re.Match[str] | None:
    match = _METRIC.fullmatch(name)
    return match if match and our_name(match["op"]) else None


def comm_tables(node: NodeTable) -> Iterator[CommTable]:
    """Yield a node's metrics of collectives, a table an operation and rank."""
    printed: dict[tuple[str, str, str, str], dict[int, dict[str, Printed]]] = defaultdict(
        lambda: defaultdict(dict))
    for name, value in node.metrics.items():
        if match := _of_collective(name):
            key = (match["of"], match["op"], match["step"] or "", match["rank"] or "")
            printed[key][int(match["size"])][match["what"]] = value
    for (benchmark, operation, step, rank), sizes in printed.items():
        rows = tuple(CommRow(node.line, size, (PrintedForm(
            None, named.get("time"), named.get("algbw"), named.get("busbw")),))
            for size, named in sorted(sizes.items()))
        label = " ".join(filter(None, (benchmark, step, node.node)))
        label += rank if rank != ":0" else ""
        yield CommTable(PROGRAM, node.path, node.line, our_name(operation), rows,
                        timed_rates=False, label=printable(label)[:MOST_TEXT])
