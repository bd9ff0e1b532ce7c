"""Who meets in a hunt: rounds of each stage, and who meets next given the facts so far.

**Alone**, every rank is measured in as many rounds as the test of `slow` needs, in few where nobody
is in doubt. **Pairs** meet in rounds of disjoint pairs (circle method). The bandwidth of a pair is
that of its slower node, so a node is judged by the best of a block of rounds with different
partners; blocks are as many as rounds alone, more where there is time. **The ladder** has groups of
ranks of one node, then of 4, 8, 16, ... nodes, drawn anew in each round, and of all. A group that
shows a fault is taken apart: half of its candidates meet nodes that were cleared, so that the group
keeps its size."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from itertools import count, islice

from hpcbench.analysis.machine import MIN_RANKS
from hpcbench.fleet.hunt.blame import (
    Meeting,
    accused,
    candidates,
    cleared,
    meetings_of,
    unexplained,
    with_slow,
)
from hpcbench.fleet.hunt.facts import (
    ALONE,
    BAD,
    BISECT,
    CONFIRM,
    FAULTS,
    LADDER,
    PAIRS,
    SWEEP,
    Company,
    Fact,
    Job,
    NodeVerdict,
    Round,
)
from hpcbench.fleet.hunt.judge import (
    CONFIRM_CHANCE,
    FEWEST_OF_LADDER,
    MOST_CONFIRMED,
    alone_verdicts,
    block_rounds,
    in_doubt,
    low_links,
    pair_verdicts,
    slow_in_groups,
)
from hpcbench.fleet.hunt.slow import FEWEST_PASSES, LOOKS, MOST_TESTED, passes_needed

Steps = Generator[Round, None, None]
ROUND_S = 3.0
"""A round of pairs is to take so long, or less where the stage is shorter."""
DISTURBED = 1
"""In so many of its measurements a slow node may not be the slowest."""
MOST_CONTROLS = 7
"""Groups beside one that is confirmed to be slow."""
FAULTS_TO_LEAVE = 2
"""A node that showed so many faults in a stage is not measured further in it."""
RUNG_ROUNDS = 2
FEWEST_LEFT = 8
"""Slow nodes stay in the hunt where fewer others are left to compare with."""
MOST_AT_ONCE = 8
"""Groups that are taken apart at the same time."""
COMPLEMENTS = 4
"""Parts of a group that are left out of it one by one, where its halves do not show its fault."""


def facing(players: int, number: int) -> list[tuple[int, int]]:
    """Return the pairs of a round; each player but the odd one is in one. ``number`` counts all
    rounds of a tournament from 0; rounds that follow one another bring partners far apart."""
    places = players + players % 2
    around = places - 1
    stride = next((one for one in range(max(1, round(0.618 * around)), around)
                   if math.gcd(one, around) == 1), 1)
    turned = number * stride % around
    circle = [around, *((turned + step) % around for step in range(around))]
    pairs = zip(circle[:places // 2], reversed(circle[places // 2:]), strict=True)
    return [(min(pair), max(pair)) for pair in pairs if max(pair) < players]


def passes_of(job: Job, nodes: int) -> int:
    """Return how many times each of so many nodes is measured for the test of `slow`."""
    if job.only and nodes > 1:
        return passes_needed(nodes, MOST_TESTED / LOOKS, DISTURBED)
    return passes_needed(nodes, disturbed=DISTURBED) if nodes >= MIN_RANKS else FEWEST_PASSES


class Hunt:
    """The rounds of a hunt and their facts, which grow as it goes on.

    ``execute`` measures a round. Random choices depend on the job and the facts alone."""

    def __init__(self, job: Job, execute: Callable[[Round], Sequence[Fact]]) -> None:
        self.job = job
        self.rounds: list[Round] = []
        self.facts: list[Fact] = []
        self._execute = execute
        self._now_s = 0.0
        self._bad: set[str] = set()
        self._begin()
        self._random = random.Random(len(job.nodes))  # noqa: S311  (no secret)
        chosen = (job.only, *job.partners) if job.only else tuple(one.name for one in job.nodes)
        self._names = [one.name for one in job.nodes if one.name in chosen]

    def run(self) -> Iterator[Round]:
        """Carry out the hunt; yield each round after its facts are there."""
        yield from self._alone()
        self._leave_out(alone_verdicts(self.job, self.rounds, self.facts))
        self._begin()
        if len(self._names) > 1:
            yield from self._pairs()
            self._leave_out(pair_verdicts(self.job, self.rounds, self._recent))
        yield from self._ladder()

    def _leave_out(self, verdicts: Iterator[NodeVerdict]) -> None:
        """Leave out bad nodes, but slow ones only where enough others are left."""
        bad = {one.node: one.expected for one in verdicts if one.verdict == BAD}
        is_few = len(self._names) - len(bad) < FEWEST_LEFT
        self._names = [name for name in self._names
                       if name not in bad or (is_few and bad[name])]

    @property
    def _recent(self) -> list[Fact]:
        """Return the facts since this stage, or its part that groups several nodes, began."""
        return self.facts[self._began:]

    def _begin(self) -> None:
        """Begin a stage, or the part of one that groups several nodes."""
        self._began, self._met = len(self.facts), list[Meeting]()
        self._began_s, self._beside_s = self._now_s, 0.0

    def _do(self, stage: str, purpose: str, groups: Sequence[Company], round_s: float) -> Steps:
        """Carry out a round that is to take ``round_s``, with what the one before took beside its
        measurements."""
        if groups:
            step = Round(len(self.rounds), stage, purpose, tuple(groups),
                         max(0.0, round_s - self._beside_s))
            facts, began_s = tuple(self._execute(step)), self._now_s
            self.rounds.append(step)
            self.facts += facts
            self._now_s = max((fact.at_s for fact in facts), default=began_s)
            self._beside_s = max(0.0, self._now_s - began_s - step.budget_s)
            self._met += meetings_of([step], facts, stage)
            yield step

    def _is_clear(self, stage: str) -> bool:
        """Return whether a stage needs no further passes: nobody is in doubt who is not bad."""
        doubtful = in_doubt(self.job, self.rounds, self._recent, stage)
        if not doubtful <= self._bad:
            seen = (pair_verdicts(self.job, self.rounds, self._recent) if stage == PAIRS else
                    alone_verdicts(self.job, self.rounds, self._recent, stage=stage))
            self._bad |= {one.node for one in seen if one.verdict == BAD}
        return doubtful <= self._bad

    def _passes(self, stage: str, once: Callable[[], Steps]) -> Steps:
        """Carry out ``once``, a pass over all nodes, as often as the test needs."""
        for done in range(passes_of(self.job, len(self._names))):
            if done >= FEWEST_PASSES and self._is_clear(stage):
                return
            yield from once()

    def _alone(self) -> Steps:
        passes, faults = passes_of(self.job, len(self._names)), Counter[str]()

        def once() -> Steps:
            seen = len(self.facts)
            yield from self._do(ALONE, SWEEP, [
                Company((name,), 1) for name in self._names if faults[name] < FAULTS_TO_LEAVE],
                self.job.stage_s / passes)
            faults.update({fact.node for fact in self.facts[seen:] if fact.outcome in FAULTS})

        yield from self._passes(ALONE, once)

    # ---- pairs

    def _pairs(self) -> Steps:
        names, n = self._names, len(self._names)
        block = block_rounds(n)
        budget_s = min(ROUND_S, self.job.stage_s / (passes_of(self.job, n) * block))

        numbers = count()

        def once() -> Steps:
            for number in islice(numbers, block):
                gone = self._often_at_fault()
                pairs = [(names[a], names[b]) for a, b in facing(n, number)]
                yield from self._do(PAIRS, SWEEP, [
                    Company(pair) for pair in pairs if not gone & {*pair}], budget_s)

        yield from self._passes(PAIRS, once)
        while sum(step.stage == PAIRS for step in self.rounds) < n - block and (
                self._now_s - self._began_s < self.job.stage_s):
            yield from once()  # with partners that are left
        yield from self._explain_pairs(budget_s)
        for link in low_links(self.job, self.rounds, self._recent)[:MOST_CONFIRMED]:
            yield from self._confirm_link(link, budget_s)

    def _often_at_fault(self) -> set[str]:
        meetings = self._met
        shown = Counter(name for meeting in meetings if meeting.shows
                        for name in meeting.blamed or meeting.nodes)
        sound = {name for meeting in meetings if not meeting.shows for name in meeting.nodes}
        return {name for name, count in shown.items()
                if count >= FAULTS_TO_LEAVE and name not in sound} | accused(meetings).keys()

    def _explain_pairs(self, budget_s: float) -> Steps:
        """Have pairs with a fault that is not explained meet others, or once more each other."""
        for _ in range(FAULTS_TO_LEAVE + 1):
            meetings, clean = self._met, cleared(self._met)
            bad = accused(meetings)
            opened = list(unexplained(meetings, bad))
            busy = {name for meeting in opened for name in meeting.nodes}
            sound = [name for meeting in meetings if not meeting.shows for name in meeting.nodes
                     if name not in busy and name not in bad]
            partners = [name for name in dict.fromkeys(sound) if name in self._names]
            self._random.shuffle(partners)
            groups: list[Company] = []
            taken: set[str] = set()
            for meeting in opened:
                unclear = [name for name in candidates(meeting, clean) if name not in taken]
                again = [one for one in meetings if {*one.nodes} == {*meeting.nodes} and one.shows]
                if not candidates(meeting, clean) and len(again) < FAULTS_TO_LEAVE and (
                        not taken & {*meeting.nodes}):
                    groups.append(Company(meeting.nodes))
                    taken |= {*meeting.nodes}
                for name in unclear:
                    if partners:
                        groups.append(Company((name, partners.pop())))
                        taken.add(name)
            yield from self._do(PAIRS, CONFIRM, groups, budget_s)

    def _confirm_link(self, link: tuple[str, str], budget_s: float) -> Steps:
        """Measure a link beside pairs of others, drawn anew in each round, but of none at fault."""
        gone = self._often_at_fault()
        others = [name for name in self._names if name not in link and name not in gone]
        pairs = len(others) // 2
        for _ in range(passes_needed(pairs + 1, CONFIRM_CHANCE, DISTURBED) if pairs else 0):
            self._random.shuffle(others)
            yield from self._do(PAIRS, CONFIRM, [Company(link), *(
                Company(pair) for pair in zip(others[::2], others[1::2], strict=False))], budget_s)

    # ---- ladder

    def _ladder(self) -> Steps:
        ranks = {one.name: len(one.ranks) for one in self.job.nodes}
        most = max((ranks[name] for name in self._names), default=0)
        within = [*(2 ** k for k in range(1, 12) if 2 ** k < most), most] if most > 1 else []
        n = len(self._names)
        across = [2 ** k for k in range(2, 20) if 2 ** k < n]
        across += [n] if n >= FEWEST_OF_LADDER else []
        passes = passes_of(self.job, n)
        budget_s = self.job.stage_s / max(1, passes * len(within) + RUNG_ROUNDS * len(across))
        for size in within:
            groups = [Company((name,), size) for name in self._names if ranks[name] >= size]
            yield from self._passes(LADDER, partial(self._do, LADDER, SWEEP, groups, budget_s))
        self._begin()
        for size in across:
            yield from self._rung(size, budget_s)

    def _rung(self, size: int, budget_s: float) -> Steps:
        names = self._names
        for number in range(RUNG_ROUNDS):
            drawn = list(names)
            if size < len(names) and number:
                self._random.shuffle(drawn)
            yield from self._do(LADDER, SWEEP, [
                Company(tuple(drawn[first:first + size]))
                for first in range(0, len(drawn) - size + 1, size)], budget_s)
            yield from self._narrow(budget_s, lambda meetings: meetings)
            gone = accused(self._met)
            names = self._names = [name for name in names if name not in gone]
            size = min(size, len(names))
        yield from self._narrow(budget_s, with_slow)
        slow = {name: len(some[0].nodes) for name, some in accused(with_slow(self._met)).items()}
        for name in [one for one in slow if one in self._names][:MOST_CONFIRMED]:
            yield from self._confirm_slow(name, slow[name], budget_s)
        self._leave_out(slow_in_groups(self.rounds, self._met))

    def _narrow(
        self, budget_s: float, seen: Callable[[list[Meeting]], list[Meeting]],
    ) -> Steps:
        """Take apart the groups of several nodes that show a fault, or are slow (``seen``)."""
        names = {*self._names}
        for _ in range(3 * len(names).bit_length() + 6):
            meetings = seen(self._met)
            clean = cleared(meetings)
            opened = sorted((
                (left, meeting) for meeting in unexplained(meetings, accused(meetings))
                if (left := candidates(meeting, clean)) and names.issuperset(meeting.nodes)),
                key=lambda one: (len(one[0]), len(one[1].nodes)))
            tried = {frozenset(meeting.nodes) for meeting in meetings}
            taken: set[str] = set()
            busy = {name for left, _ in opened for name in left}
            groups: list[Company] = []
            for left, meeting in opened[:MOST_AT_ONCE]:
                pads = [name for name in self._names if name not in busy and name not in taken
                        and clean.get(name, 0) >= len(meeting.nodes)]
                self._random.shuffle(pads)
                whole = seen is with_slow  # rates of other sizes are not comparable
                new = [one for one in _parts(left, meeting.nodes, pads, tried, whole=whole)
                       if not taken & {*one.nodes}]
                groups += new
                taken.update(name for one in new for name in one.nodes)
            if not groups:
                return
            yield from self._do(LADDER, BISECT, groups, budget_s)

    def _confirm_slow(self, name: str, size: int, budget_s: float) -> Steps:
        """Measure groups of this size with and without the node, drawn anew in each round.

        Where there are not nodes enough for both, rounds with it alternate with rounds without."""
        others = [other for other in self._names if other != name]
        controls = min((len(others) - size + 1) // size, MOST_CONTROLS)
        alternate = controls < 1
        if len(others) < size:
            return
        for _ in range(passes_needed(1 + max(1, controls), CONFIRM_CHANCE, DISTURBED)):
            self._random.shuffle(others)
            first, rest = others[:size - 1], others[size - 1:]
            groups = [Company((name, *first)), *(
                Company(tuple(rest[at * size:(at + 1) * size])) for at in range(controls))]
            yield from self._do(LADDER, CONFIRM, groups, budget_s)
            if alternate:
                yield from self._do(LADDER, CONFIRM, [Company(tuple(others[:size]))], budget_s)


def _parts(
    left: tuple[str, ...], nodes: tuple[str, ...], pads: Sequence[str],
    tried: Collection[frozenset[str]], *, whole: bool,
) -> list[Company]:
    """Return groups whose outcome halves the candidates ``left`` of the group ``nodes``: one half
    and cleared nodes (``pads``), as many as before. With too few of them, and unless ``whole``,
    both halves by themselves; then all nodes without a part of the candidates, a part a time."""
    half = left[:(len(left) + 1) // 2]
    if len(half) + len(pads) >= len(nodes) or (len(left) == 1 and not whole):
        groups = [(*half, *pads[:len(nodes) - len(half)])]
    elif whole:
        return []
    else:
        groups = [part for part in (half, left[len(half):]) if frozenset(part) not in tried]
        if not any(len(part) > 1 for part in groups):
            step = -(-len(left) // COMPLEMENTS)
            without = (tuple(name for name in nodes if name not in left[first:first + step])
                       for first in range(0, len(left), step))
            groups = [one for one in without if frozenset(one) not in tried][:1]
    return [Company(group) for group in groups if len(group) > 1]
