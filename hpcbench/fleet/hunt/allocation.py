"""The nodes of a hunt: those whose ranks have signed in, and those that are missing.

Slurm's variables name all nodes of a job step; mpirun's name none, so a missing rank stands for its
node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hpcbench.fleet.hunt.facts import Node

_RANGES = re.compile(r"([^\[\],]*)(?:\[([\d,\-]+)\])?([^\[\],]*),?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_MOST_NODES = 1 << 17


def expanded(hostlist: str) -> list[str]:
    """Return the names in Slurm's ``n[1-3,07],login``; [] for what is no such list."""
    names: list[str] = []
    at = 0
    while at < len(hostlist):
        match = _RANGES.match(hostlist, at)
        if match is None or match.end() == at:
            return []
        at = match.end()
        before, ranges, after = match.groups()
        names += [f"{before}{number}{after}" for number in _numbers(ranges)] if ranges else [before]
        if len(names) > _MOST_NODES:
            return []
    return names if all(names) else []


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return
        for number in range(int(first), min(int(last or first), int(first) + _MOST_NODES) + 1):
            yield f"{number:0{len(first)}}"


def step_nodes(environ: Mapping[str, str], size: int) -> dict[str, tuple[int, ...]]:
    """Return the nodes of this job step of Slurm with their ranks in blocks, as srun gives them
    unless --distribution says otherwise; {} without Slurm, or where ranks do not add up."""
    names = expanded(environ.get("SLURM_STEP_NODELIST", ""))
    counts = [int(count) for text in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")
              if (match := _TASKS.fullmatch(text)) for count in [match[1]] * int(match[2] or 1)]
    if not names or len(names) != len(counts) or sum(counts) != size:
        return {}
    ranks = iter(range(size))
    return {name: tuple(next(ranks) for _ in range(count))
            for name, count in zip(names, counts, strict=True)}


def nodes_of(
    size: int, signed_in: Mapping[int, tuple[str, str]], step: Mapping[str, tuple[int, ...]],
) -> tuple[Node, ...]:
    """Return all nodes in the order of their first ranks.

    Args:
        size: the number of ranks.
        signed_in: rank -> its node, and the switch of that.
        step: the nodes of `step_nodes`. It places a missing rank where that does not contradict
            those that have signed in; otherwise the rank stands for a node: ``rank-7``."""
    places = {rank: node for node, ranks in step.items() for rank in ranks}
    fits = all(places.get(rank, node) == node for rank, (node, _) in signed_in.items())
    ranks: dict[str, list[int]] = {}
    for rank in range(size):
        node = (signed_in[rank][0] if rank in signed_in else
                places[rank] if fits and rank in places else _stand_in(rank, signed_in))
        ranks.setdefault(node, []).append(rank)
    absent = [name for name in step if name not in ranks]
    if absent:  # which of the missing ranks were to be there is not known: each gets one
        ranks = _named(ranks, absent)
    switches = dict(signed_in.values())
    return tuple(Node(name, tuple(some), switches.get(name, "")) for name, some in ranks.items())


def _stand_in(rank: int, signed_in: Mapping[int, tuple[str, str]]) -> str:
    """Return the name of a missing rank's node: of the one that has its neighbours on both sides,
    else one of its own."""
    before = next((signed_in[one][0] for one in range(rank, -1, -1) if one in signed_in), None)
    after = next((signed_in[one][0] for one in range(rank, max(signed_in, default=0) + 1)
                  if one in signed_in), None)
    return before if before is not None and before == after else f"rank-{rank}"


def _named(ranks: Mapping[str, Sequence[int]], absent: Sequence[str]) -> dict[str, list[int]]:
    """Return the nodes with the names of absent ones in place of those that stand for a rank."""
    names = iter(absent)
    return {next(names, name) if name.startswith("rank-") else name: list(some)
            for name, some in ranks.items()}
