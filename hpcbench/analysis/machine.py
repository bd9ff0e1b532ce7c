"""Which links and ranks of the machine are slow, from cases that measured them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, MOST_UNSEEN, NONE, Answer, Asked, Run
from hpcbench.analysis.slow_links import (
    HOST,
    HOSTS,
    LINK,
    ONE_WAY,
    RANK,
    RECEIVER,
    SENDER,
    SlowSet,
    cells_of,
    slow_links,
)
from hpcbench.analysis.slow_nodes import SlowRank, slow_ranks, whole_hosts
from hpcbench.errors import command_line
from hpcbench.kinds.registry import kinds
from hpcbench.reduce.machine_rates import PairRates
from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural

MOST_NAMED = 5
CHANCE = 0.01
"""At most in this share of reports of a machine with nothing slow anything is named."""
_NAMES = {RANK: "all links of rank {0}", HOST: "all links of {host}",
          SENDER: "what rank {0} sends", RECEIVER: "what rank {0} receives",
          LINK: "the link of ranks {0} and {1}", ONE_WAY: "the link from rank {0} to {1}",
          HOSTS: "the links between {host} and {other}"}


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A part of the machine that is slow: ``drop`` is the lost share of the rate, with 99 %."""

    label: str
    what: str
    drop: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The record of the topic: what is slow, and how many looks there were."""

    parts: tuple[SlowPart, ...]
    looks: int
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """What one matrix, or the rates of all ranks, said; ``missing`` says why it said nothing."""

    label: str
    parts: tuple[SlowPart, ...] = ()
    detectable: float | None = None
    missing: str = ""


def machine(runs: Sequence[Run], asked: Asked) -> Machine:
    """Return which links and ranks are slow in these runs."""
    matrices = [(run, item, pairs) for run in runs for item in _ok(run)
                if (pairs := _pairs(run, item)) is not None]
    rated = [(run, rates) for run in runs if (rates := _rates(run))]
    chance = CHANCE / max(1, len(matrices) + len(rated))
    looks = [*(_of_links(item, pairs, chance) for _, item, pairs in matrices),
             *(_of_ranks(run, rates, chance) for run, rates in rated)]
    parts = tuple(sorted((part for look in looks for part in look.parts),
                         key=lambda part: -part.drop))
    command = command_line("advise", *(run.path for run in runs), "--only", "machine")
    return Machine(parts, len(looks), tuple(_answers(looks, parts, command)))


def _ok(run: Run) -> Iterator[CaseResult]:
    return (item for item in run.results.cases if item.status == "ok"
            and item.case.kind in kinds() and item.case.kind not in run.results.missing_kinds)


def _pairs(run: Run, item: CaseResult) -> PairRates | None:
    return kinds()[item.case.kind].deriver().pair_rates(item, run.results.record_of(item))


def _rates(run: Run) -> list[tuple[float, ...]]:
    """Return the rates of all ranks of the run in each case that has them."""
    found = (kinds()[item.case.kind].deriver().rank_rates(item, run.results.record_of(item))
             for item in _ok(run) if item.case.world_size == run.results.run.world_size > 1)
    return [tuple(rates) for rates in found if rates and min(rates) > 0]


def _hosts(item: CaseResult) -> list[str]:
    told: Any = item.detail
    return [str(told.get(str(rank), {}).get("node") or "") for rank in range(item.case.world_size)]


def _of_links(item: CaseResult, pairs: PairRates, chance: float) -> _Look:
    label, hosts = item.case.label, _hosts(item)
    if pairs.missing:
        return _Look(label, missing=pairs.missing)
    numbers = np.array([hosts.index(host) for host in hosts], dtype=np.int64)
    apart = (numbers[:, None] != numbers[None, :]).astype(np.int64)
    rates = np.array([[np.nan if rate is None else rate for rate in row] for row in pairs.rates])
    cells = cells_of(rates, apart, numbers, each_way=pairs.each_way)
    found = slow_links(cells, chance, each_way=pairs.each_way)
    return _Look(label, tuple(_part(label, one, hosts) for one in found.found), found.detectable,
                 "" if found.detectable is not None else "it takes 4 ranks or more")


def _part(label: str, one: SlowSet, hosts: Sequence[str]) -> SlowPart:
    places = [hosts[at] if at < len(hosts) else "" for at in one.who]
    what = _NAMES[one.kind].format(*one.who, host=places[0], other=places[-1])
    return SlowPart(label, what, one.drop, one.low, one.high)


def _of_ranks(run: Run, rates: Sequence[tuple[float, ...]], chance: float) -> _Look:
    label = f"rates of each rank in {plural(len(rates), 'case')}"
    found = slow_ranks(np.array(rates), chance)
    if found.detectable is None:
        return _Look(label, missing="it takes 4 ranks or more")
    hosts = next((_hosts(item) for item in run.results.cases
                  if item.case.world_size == run.results.run.world_size and item.detail), [])
    whole = whole_hosts(found.found, hosts) if hosts else {}
    of_hosts = {one.rank for same in whole.values() for one in same}
    parts = [SlowPart(label, f"all ranks of {host}", *_middle(same))
             for host, same in whole.items()]
    parts += [SlowPart(label, f"rank {one.rank}", one.drop, one.low, one.high)
              for one in found.found if one.rank not in of_hosts]
    return _Look(label, tuple(parts), found.detectable)


def _middle(same: Sequence[SlowRank]) -> tuple[float, float, float]:
    """Return the middle drop of ranks, and the widest interval of them."""
    drops = sorted(one.drop for one in same)
    return drops[len(drops) // 2], min(one.low for one in same), max(one.high for one in same)


def _answers(
    looks: Sequence[_Look], parts: Sequence[SlowPart], command: str,
) -> Iterator[Answer]:
    for part in parts:
        yield Answer(
            CLEAR, f"{part.what} had a rate {_percent(part.drop)} below that of the others "
            f"(99 % interval {_percent(part.low)} to {_percent(part.high)})",
            (part.label, f"of machines with nothing slow at most {CHANCE:.0%} of reports name any",
             "to do: measure again with the hosts in another order; if it stays, look at that "
             "cable, port or host"), command, part.what)
    able = sorted(((look.detectable, look.label) for look in looks
                   if look.detectable is not None and not look.parts), reverse=True)
    seen = [one for one in able if one[0] <= MOST_UNSEEN]
    if seen and not parts:
        yield Answer(NONE, "no link and no rank is slow by itself in "
                     f"{plural(len(seen), 'check')}: a drop of {_percent(seen[0][0])} would have "
                     "been named", (seen[0][1],), command)
    if blind := able[:len(able) - len(seen)]:
        yield Answer(CANNOT_TELL, f"cannot tell in {plural(len(blind), 'check')} whether a link or "
                     f"a rank is slow: noise hides any drop below {_percent(blind[0][0])}; "
                     "use more passes or samples", tuple(
                         label for _, label in blind[:MOST_NAMED]), command)
    unable = dict.fromkeys(look.missing for look in looks if look.missing)
    for why in unable:
        count = sum(look.missing == why for look in looks)
        yield Answer(CANNOT_TELL, f"cannot tell in {plural(count, 'check')} whether a link or a "
                     f"rank is slow, because {why}", (), command)
    if not looks:
        yield Answer(CANNOT_TELL, "cannot tell which link or node is slow, because no case "
                     "measured them one by one: add the block {kind: hardware, test: pairs}",
                     (), command)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
