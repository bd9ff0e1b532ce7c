"""A table of hpcbench in nccl-tests' form: what its rows do not say, in a line that others skip.

nccl-tests measures on nccl and GPUs, the mean of calls back to back. hpcbench may not, so it says
what it did, and reads it again. What such a line holds is checked as a sweep file is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError

from hpcbench import __version__
from hpcbench.config.section import Backend, Cache, Count, Device, Mode, Section, Text, Warmup
from hpcbench.errors import HpcbenchError
from hpcbench.operations.arrival import TOGETHER, ArrivalPattern
from hpcbench.plan.case import DEFAULT_MODE
from hpcbench.texts import to_json

PROGRAM = "hpcbench"
MOST_TEXT = 200
MARK = "layout of nccl-tests"
OWN_LINE = r"hpcbench (?P<own>[^\s,]+, run .*)"
_OF_CASE = {"env", "cuda_graph", "arrival"}
_OWN = re.compile(rf"([^\s,]{{1,40}}), run .*?{MARK}(?:; (\{{.*\}}))?\s*$")
"""Version, run, title, and the facts as JSON, which the first versions did not write."""
_SEARCHED = re.compile("time|Avg|Rank|NVIDIA|Out of bounds|out-of-place|FAILED|Test ")
"""Words by which readers find headers, totals and failures: values hold them escaped."""


def _arrival(value: Any) -> ArrivalPattern:
    return value if isinstance(value, ArrivalPattern) else ArrivalPattern.from_text(str(value))


class OwnTable(Section):
    """How the rows of a table were measured, by the fields of `plan.case.Case`.

    ``printed_by`` are the programs that printed imported times, ``is_mean``: means of ``batch``
    calls, 1 where it is not known, in place of medians. ``only_in_place`` and
    ``only_out_of_place`` are rows (`row_key`) that were measured once, and fill both halves.
    """

    backend: Backend
    device: Device
    mode: Mode = DEFAULT_MODE
    warmup: Warmup = 0
    batch: Count = 1
    env: tuple[tuple[Text, str], ...] = ()
    cuda_graph: bool = False
    arrival: Annotated[ArrivalPattern, PlainValidator(_arrival), PlainSerializer(
        lambda value: value.text)] = TOGETHER
    buffers: Cache = "warm"
    asynchronous: bool = False
    printed_by: Annotated[str, Field(max_length=MOST_TEXT)] = ""
    is_mean: bool = False
    only_in_place: tuple[Text, ...] = ()
    only_out_of_place: tuple[Text, ...] = ()

    @property
    def case_fields(self) -> dict[str, Any]:
        """Return further fields of a case."""
        return {name: getattr(self, name) for name in _OF_CASE}

    @property
    def unusual(self) -> dict[str, Any]:
        """Return `case_fields` that differ from the usual, as plain values."""
        return self.model_dump(include=_OF_CASE, exclude_defaults=True)

    def halves_of(self, key: str) -> tuple[bool, ...]:
        """Return which halves of a row were measured: out of place (False), in place."""
        return (True,) if key in self.only_in_place else (
            False,) if key in self.only_out_of_place else (False, True)


def row_key(*fields: object) -> str:
    """Return a row's name within its table, by its size, type, operator and root as printed."""
    return "/".join(map(str, fields))


def own_line(title: str, facts: Mapping[str, Any], *, run_id: str) -> str:
    known = _SEARCHED.sub(lambda word: f"\\u{ord(word[0][0]):04x}{word[0][1:]}", to_json(facts))
    known = f"; {known}" if facts else ""
    return f"hpcbench {__version__}, run {run_id}: {title}; {MARK}{known}"


def read_own(text: str) -> tuple[str, OwnTable | None]:
    """Return the version of hpcbench in a line, and its facts; None where it has none.

    Raises ValueError for facts that this version does not know.
    """
    found = _OWN.match(text)
    if found is None:
        raise ValueError("no line of a table of hpcbench")
    return found[1], own_facts(found[2]) if found[2] else None


def own_facts(text: str | bytes) -> OwnTable:
    """Return the facts of a JSON text. Raises ValueError for unknown ones."""
    try:
        return OwnTable.model_validate_json(text)
    except (ValidationError, HpcbenchError) as error:
        raise ValueError("facts of a table that are not known") from error
