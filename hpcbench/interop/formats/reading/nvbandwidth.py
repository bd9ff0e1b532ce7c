"""The JSON of nvbandwidth (``-j``): a matrix for each test case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.interop.formats.printed import Printed, printed_or_none
from hpcbench.interop.formats.reading.nccl_json import number_of
from hpcbench.interop.formats.reading.source import ForeignFile
from hpcbench.interop.formats.tables import MatrixTable

STATUSES = ("Passed", "Waived", "Error", "Not Found")


def read(file: ForeignFile, data: Mapping[str, Any]) -> Iterator[MatrixTable]:
    """Yield its test cases. Raises FileError where its keys are not those of version 0.8."""
    try:
        for case in data["nvbandwidth"]["testcases"]:
            if case["status"] not in STATUSES:
                raise ValueError("status")
            yield MatrixTable(
                file.name, str(case["name"]), case["status"],
                str(case.get("bandwidth_description", "")),
                tuple(tuple(map(_cell, row)) for row in case.get("bandwidth_matrix") or ()),
                *(number_of(case.get(key)) for key in ("sum", "min", "max", "average")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise file.error(1, "JSON of nvbandwidth whose keys are not those of version 0.8"
                         ) from error


def _cell(value: object) -> Printed | None:
    return printed_or_none(value) if isinstance(value, str) else number_of(value)
