"""In what two sides differ beside what was to be compared: possible causes of any change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcbench.analysis.sides import Side
from hpcbench.reduce.environments import stable_facts
from hpcbench.reduce.results import Results

FIRST = ("versions.", "variables.", "nodes", "ranks")
"""Beginnings of keys that are said first: software, settings, and where it ran."""
ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact of the run that is not the same on all sides: its values, one a side."""

    key: str
    values: tuple[str, ...]


def differences(sides: Sequence[Side]) -> list[Difference]:
    """Return what differs between the sides, what most likely matters first.

    A side of several files has the values of all of them, separated by commas.
    """
    known = [_facts(side) for side in sides]
    keys = dict.fromkeys(key for facts in known for key in facts)
    found = (Difference(key, tuple(facts.get(key, ABSENT) for facts in known)) for key in keys)
    return sorted((one for one in found if len(set(one.values)) > 1), key=_order)


def _order(difference: Difference) -> tuple[int, str]:
    places = [at for at, begin in enumerate(FIRST) if difference.key.startswith(begin)]
    return (places[0] if places else len(FIRST)), difference.key


def _facts(side: Side) -> Mapping[str, str]:
    values: dict[str, dict[str, None]] = {}
    for results in side.results:
        for key, value in _facts_of(results):
            values.setdefault(key, {})[value] = None
    return {key: ", ".join(seen) for key, seen in values.items()}


def _facts_of(results: Results) -> Iterator[tuple[str, str]]:
    run = results.run
    yield "ranks", str(run.world_size)
    yield "nodes", " ".join(run.nodes)
    yield "versions.hpcbench", run.hpcbench_version
    for name, version in run.versions.items():
        yield f"versions.{name}", version
    for key, value in stable_facts(run.environment).items():
        if not key.startswith("versions."):
            yield key, value.strip('"')
