"""Verdicts on the nodes of a hunt, from its rounds and facts alone.

Faults of one node by themselves count in two rounds, those of groups by elimination (`blame`). A
speed is compared with that of the other nodes (`slow`), or with `HuntLimits`. What is accused
once, or only together with others, is suspect; what was not measured, or not compared, is never
good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from hpcbench.analysis.machine import MIN_RANKS, MOST_SHARE
from hpcbench.errors import ExitCode
from hpcbench.fleet.hunt.blame import (
    CONFIRMED,
    USUAL_PERCENT,
    Meeting,
    counted,
    faulty_nodes,
    meetings_of,
    rate_of,
    told,
)
from hpcbench.fleet.hunt.facts import (
    ALONE,
    BAD,
    CONFIRM,
    EQUAL,
    FAULTS,
    GOOD,
    LADDER,
    LESS,
    MEASURED,
    MEASURES,
    MORE,
    NOT_TESTED,
    PAIRS,
    SUSPECT,
    SWEEP,
    ZERO,
    Fact,
    Job,
    NodeVerdict,
    Round,
    names_text,
    value_text,
)
from hpcbench.fleet.hunt.limits import HuntLimits, like, missed_verdicts
from hpcbench.fleet.hunt.slow import (
    FEWEST_PASSES,
    LEAST_DROP,
    LOOKS,
    MOST_TESTED,
    Values,
    doubtful_columns,
    is_lower,
    passes_needed,
    slow_columns,
)
from hpcbench.records import dataclass
from hpcbench.units import grouped, plural, three_digits

SMALL = 16
"""From so many nodes on, a node seldom meets two slow ones in two rounds."""
FEWEST_OF_LADDER = 3
"""Nodes of the least group of the ladder: pairs were measured before."""
MOST_CONFIRMED = 4
"""Links, and nodes of a rung of the ladder, that are confirmed to be slow: the slowest ones."""
CONFIRM_CHANCE = MOST_TESTED / MOST_CONFIRMED
_WORST = (BAD, SUSPECT, NOT_TESTED, GOOD)


@dataclass(frozen=True, slots=True)
class HuntJudgement:
    """The verdict on each node, in the order of the job, and what could not be judged."""

    verdicts: tuple[NodeVerdict, ...]
    notes: tuple[str, ...] = ()

    def names(self, verdict: str) -> list[str]:
        return [one.node for one in self.verdicts if one.verdict == verdict]

    @property
    def exit_code(self) -> ExitCode:
        """Return FINDINGS where a node is bad or suspect, INCOMPLETE where one is untested."""
        if self.names(BAD) or self.names(SUSPECT):
            return ExitCode.FINDINGS
        return ExitCode.OK if len(self.names(GOOD)) == len(self.verdicts) else ExitCode.INCOMPLETE


def block_rounds(nodes: int) -> int:
    """Return how many rounds of pairs a node is judged by together: one more than slow nodes that
    it may have met in them; of an odd number, a node sits one round out."""
    return 2 if nodes % 2 == 0 and (nodes < 2 * MOST_SHARE or nodes >= SMALL) else 3


def judge(
    job: Job, rounds: Sequence[Round], facts: Sequence[Fact], limits: HuntLimits,
) -> HuntJudgement:
    """Return the verdict on each node that was to be judged."""
    of_stage = grouped((fact.stage, fact) for fact in facts)
    alone, pairs, ladder = (of_stage.get(stage, []) for stage in (ALONE, PAIRS, LADDER))
    found = list(chain(
        alone_verdicts(job, rounds, alone, limits), pair_verdicts(job, rounds, pairs),
        ladder_verdicts(job, rounds, ladder), missed_verdicts(rounds, facts, limits)))
    names = [job.only] if job.only else [node.name for node in job.nodes]
    untested = _untested(job, of_stage, limits, {one.node for one in found if one.verdict == BAD},
                         in_doubt(job, rounds, alone, ALONE))
    accused = grouped((one.node, one) for one in (*found, *untested))
    verdicts = tuple(min(accused.get(name, [NodeVerdict(name, GOOD)]),
                         key=lambda one: _WORST.index(one.verdict)) for name in names)
    return HuntJudgement(verdicts, tuple(_notes(job, facts, limits)))


# ---- one node by itself


def alone_verdicts(
    job: Job, rounds: Sequence[Round], facts: Sequence[Fact], limits: HuntLimits | None = None,
    stage: str = ALONE,
) -> Iterator[NodeVerdict]:
    """Yield the nodes that are bad or suspect by what was measured on one node at a time."""
    own = [fact for fact in facts if fact.stage == stage and len(fact.members) == 1]
    for (name, outcome), some in grouped(
            ((fact.members[0], fact.outcome), fact) for fact in own
            if fact.outcome in FAULTS).items():
        yield counted(name, some, f"{outcome}{told(some[0])}")
    for some in _quantities(own):
        measure = some[0].measure
        good = MEASURES[measure].good
        if good == ZERO:
            yield from _not_zero(some)
        elif good == EQUAL:
            yield from _unequal(some, limits.devices if limits and measure == "devices" else None)
        else:
            yield from _slow_alone(job, some)


def _quantities(own: Sequence[Fact]) -> Iterable[list[Fact]]:
    """Return the measured facts of nodes by themselves, those of one quantity together."""
    return grouped(((fact.measure, fact.size_bytes, fact.ranks), fact) for fact in own
                   if fact.outcome == MEASURED and fact.value is not None).values()


def in_doubt(
    job: Job, rounds: Sequence[Round], facts: Sequence[Fact], stage: str,
) -> frozenset[str]:
    """Return the nodes of which this stage does not show, so far, that their speed is usual."""
    doubtful: set[str] = set()
    for some in _quantities([one for one in facts if one.stage == stage and len(one.members) == 1]):
        if MEASURES[some[0].measure].good in (MORE, LESS):
            columns, rates = _own_rates(some)
            doubtful.update(columns[at][0] for at in doubtful_columns(rates))
    if stage == PAIRS:
        for names, best, _, _ in _best_in_pairs(meetings_of(rounds, facts, PAIRS)):
            doubtful.update(names[at] for at in doubtful_columns(best))
    return frozenset(doubtful & {job.only} if job.only else doubtful)


def _not_zero(facts: Sequence[Fact]) -> Iterator[NodeVerdict]:
    for name, some in grouped((fact.members[0], fact) for fact in facts if fact.value).items():
        yield counted(name, some, f"{some[0].measure} is {three_digits(some[0].value or 0)}, not "
                       f"0{told(some[0])}", 0.0)


def _unequal(facts: Sequence[Fact], expected: float | None) -> Iterator[NodeVerdict]:
    """Yield the nodes without the expected value: else that of more than half of the nodes."""
    last = {fact.members[0]: fact.value for fact in facts}
    common, count = Counter(last.values()).most_common(1)[0]
    if expected is None and 2 * count > len(last) > CONFIRMED:
        expected = common
    if expected is None and len({*last.values()}) > 1:
        text = ", ".join(f"{three_digits(value or 0)} on {names_text(some)}" for value, some in
                         grouped((value, name) for name, value in last.items()).items())
        for name in last:
            yield NodeVerdict(
                name, SUSPECT, f"{facts[0].stage}: {facts[0].measure} differ, and none is that of "
                f"most nodes: {text}; --expected FILE decides", facts[0].stage, facts[0].measure,
                last[name])
    if expected is None:
        return
    for name, some in grouped((fact.members[0], fact) for fact in facts
                              if fact.value != expected).items():
        yield counted(name, some, f"{some[0].measure}: {three_digits(some[0].value or 0)}, not "
                       f"{three_digits(expected)}{told(some[0])}", expected)


def _own_rates(facts: Sequence[Fact]) -> tuple[list[tuple[str, int | None]], Values]:
    """Return (node, rank) of each column and the rates (round, column) of one quantity."""
    columns = list(dict.fromkeys((fact.members[0], fact.rank) for fact in facts))
    numbers = list(dict.fromkeys(fact.round for fact in facts))
    return columns, _table(columns, numbers, (
        (fact.round, (fact.members[0], fact.rank), rate)
        for fact in facts if (rate := rate_of(fact)) is not None))


def _slow_alone(job: Job, facts: Sequence[Fact]) -> Iterator[NodeVerdict]:
    columns, rates = _own_rates(facts)
    fact = facts[0]
    if job.only:
        own = [at for at, (name, _) in enumerate(columns) if name == job.only]
        partners = [[at for at, (name, _) in enumerate(columns) if name == one]
                    for one in job.partners]
        if own and partners and all(partners):
            controls = [rates[:, some].min(axis=1) for some in partners]
            yield from _only(job, fact, rates[:, own].min(axis=1), np.stack(controls, axis=1))
        return
    if len({name for name, _ in columns}) < MIN_RANKS:
        return
    for one in slow_columns(rates):
        name, rank = columns[one.column]
        who = "" if rank is None else f" of rank {rank}"
        yield _slow(name, fact, rates, one.column, f"{fact.measure}{who}", (one.low, one.passes))


def _only(
    job: Job, fact: Fact, own: Values, controls: Values,
) -> Iterator[NodeVerdict]:
    kept = ~np.isnan(own) & ~np.isnan(controls).any(axis=1)
    if kept.any() and is_lower(
            own[kept].tolist(), controls[kept].tolist(), MOST_TESTED / LOOKS):
        rates = np.column_stack([own, controls])[kept]
        yield _slow(job.only, fact, rates, 0, fact.measure, (len(rates), len(rates)))


def _table(
    columns: Sequence[object], numbers: Sequence[int],
    cells: Iterator[tuple[int, object, float]],
) -> Values:
    """Return rates (round, column); NaN where there is none."""
    of_column = {one: at for at, one in enumerate(columns)}
    of_round = {one: at for at, one in enumerate(numbers)}
    rates = np.full((len(numbers), len(columns)), np.nan)
    for number, column, rate in cells:
        rates[of_round[number], of_column[column]] = rate
    return rates


def _slow(
    name: str, fact: Fact, rates: Values, column: int, what: str, low: tuple[int, int],
) -> NodeVerdict:
    """Return the verdict on a slow node; ``low``: in how many of its passes it is that."""
    others = float(np.nanmedian(np.delete(rates, column, axis=1)))
    own = float(np.nanmedian(rates[:, column]))
    value, expected = (1 / one if MEASURES[fact.measure].good == LESS else one
                       for one in (own, others))
    return NodeVerdict(
        name, BAD, f"{fact.stage}: {what} {value_text(value, fact.unit)}, "
        f"{100 * (1 - own / others):.0f} % worse than the others' "
        f"{value_text(expected, fact.unit)}, in {low[0]} of {plural(low[1], 'pass')}",
        fact.stage, fact.measure, value, expected)


# ---- pairs


def pair_verdicts(
    job: Job, rounds: Sequence[Round], facts: Sequence[Fact],
) -> Iterator[NodeVerdict]:
    """Yield the nodes that are bad or suspect by pairs: faults, slow nodes, switches, links."""
    meetings = meetings_of(rounds, facts, PAIRS)
    yield from faulty_nodes(meetings)
    switches = list(_slow_switches(job, meetings))
    named = {one.node for one in switches}
    yield from switches
    yield from (one for one in _slow_in_pairs(job, meetings) if one.node not in named)
    yield from _slow_links(rounds, meetings)


def _sweeps(meetings: Sequence[Meeting]) -> dict[tuple[str, int], list[Meeting]]:
    return grouped((key, meeting) for meeting in meetings if meeting.purpose == SWEEP
                   for key in meeting.rates)


def best_of_blocks(
    meetings: Sequence[Meeting], key: tuple[str, int], names: Sequence[str], block: int,
) -> Values:
    """Return each node's best rate in each block of rounds (block, node); NaN without any."""
    numbers = {one: at // block for at, one in enumerate(sorted({
        meeting.round for meeting in meetings}))}
    best = np.full((1 + max(numbers.values()), len(names)), np.nan)
    of_name = {name: at for at, name in enumerate(names)}
    for meeting in meetings:
        for name in meeting.nodes:
            at = numbers[meeting.round], of_name[name]
            best[at] = np.fmax(best[at], meeting.rates[key])
    return best


def _best_in_pairs(meetings: Sequence[Meeting]) -> Iterator[
        tuple[list[str], Values, list[Meeting], tuple[str, int]]]:
    """Yield of each quantity the nodes, their best rates (block, node) and the meetings."""
    for key, some in _sweeps(meetings).items():
        names = list(dict.fromkeys(name for meeting in some for name in meeting.nodes))
        yield names, best_of_blocks(some, key, names, block_rounds(len(names))), some, key


def _slow_in_pairs(job: Job, meetings: Sequence[Meeting]) -> Iterator[NodeVerdict]:
    for names, best, some, key in _best_in_pairs(meetings):
        fact = _fact_of(some[0], key)
        if job.only in names and len(names) == 1 + len(job.partners):
            theirs = [meeting for meeting in some if job.only not in meeting.nodes]
            numbers = best_of_blocks(theirs, key, names, 1)[:, names.index(job.partners[0])]
            own = best[:len(numbers), names.index(job.only)]
            # of three equal links, the two of the node are both below the third by chance 1/3
            yield from _only(job, fact, own, np.stack([numbers[:len(own)]] * 2, axis=1))
        elif not job.only:
            for one in slow_columns(best):
                yield _slow(names[one.column], fact, best, one.column,
                            f"{key[0]} with any partner", (one.low, one.passes))


def _fact_of(meeting: Meeting, key: tuple[str, int]) -> Fact:
    """Return a fact for the words of a verdict: of this stage and measure."""
    return Fact(meeting.stage, meeting.round, "", key[0], size_bytes=key[1], peers=meeting.nodes)


def _slow_switches(job: Job, meetings: Sequence[Meeting]) -> Iterator[NodeVerdict]:
    """Yield the nodes of a switch whose pairs with nodes of others are slow."""
    switch = {node.name: node.switch for node in job.nodes if node.switch}
    labels = sorted({*switch.values()})
    if len(labels) < MIN_RANKS:
        return
    for key, some in _sweeps(meetings).items():
        crossing = grouped(
            ((meeting.round, switch[name]), meeting.rates[key]) for meeting in some
            if len({switch.get(one, "") for one in meeting.nodes} - {""}) > 1
            for name in meeting.nodes)
        numbers = sorted({number for number, _ in crossing})
        rates = _table(labels, numbers, ((number, label, float(np.median(values)))
                                         for (number, label), values in crossing.items()))
        for one in slow_columns(rates):
            label = labels[one.column]
            members = [name for name, of in switch.items() if of == label]
            text = _slow("", _fact_of(some[0], key), rates, one.column, key[0],
                         (one.low, one.passes))
            for name in members:
                yield NodeVerdict(
                    name, SUSPECT, f"{PAIRS}: switch {label} ({names_text(members)}) with nodes of "
                    f"others: {text.reason.removeprefix(f'{PAIRS}: ')}", PAIRS, key[0], text.value,
                    text.expected)


def low_links(
    job: Job, rounds: Sequence[Round], facts: Sequence[Fact],
) -> list[tuple[str, str]]:
    """Return the pairs, slowest first, that are slow whenever they met, though no end of them is;
    they have to be confirmed."""
    meetings = meetings_of(rounds, facts, PAIRS)
    bad = {one.node for one in chain(_slow_in_pairs(job, meetings), _slow_switches(job, meetings))}
    shares: dict[tuple[str, str], float] = {}
    for key, some in _sweeps(meetings).items():
        usual = float(np.percentile([meeting.rates[key] for meeting in some], USUAL_PERCENT))
        low = {name: [one.rates[key] < (1 - LEAST_DROP) * usual for one in met]
               for name, met in grouped((name, one) for one in some for name in one.nodes).items()}
        for nodes, met in grouped((meeting.nodes, meeting) for meeting in some).items():
            share = max(meeting.rates[key] for meeting in met) / usual
            is_of_node = any(2 * sum(low[name]) > len(low[name]) for name in nodes)
            if share < 1 - LEAST_DROP and not is_of_node and not bad & {*nodes}:
                shares[nodes[0], nodes[1]] = min(share, shares.get((nodes[0], nodes[1]), share))
    return sorted(shares, key=lambda link: shares[link])


def _beside(
    rounds: Sequence[Round], meetings: Sequence[Meeting], stage: str,
) -> dict[tuple[str, ...], list[tuple[Meeting, list[Meeting]]]]:
    """Return first group -> its meetings in rounds that confirm, each with its controls: the other
    groups of the round, else those of the next one."""
    of_round = grouped((one.round, one) for one in meetings if one.purpose == CONFIRM)
    steps = [step for step in rounds if step.stage == stage and step.purpose == CONFIRM]
    beside = []
    for at, step in enumerate(steps):
        tried = {meeting.nodes: meeting for meeting in of_round.get(step.number, [])}
        first = step.groups[0].nodes
        controls = [meeting for nodes, meeting in tried.items() if nodes != first]
        if not controls and at + 1 < len(steps):
            controls = of_round.get(steps[at + 1].number, [])
        if first in tried:
            beside.append((first, (tried[first], controls)))
    return grouped(beside)


def _lower_keys(beside: Sequence[tuple[Meeting, list[Meeting]]]) -> Iterator[
        tuple[tuple[str, int], Values]]:
    """Yield the quantities by which the first is slow beside its controls, with its rates and
    theirs (round, 2)."""
    for key in beside[0][0].rates:
        pairs = [(own.rates[key], [one.rates[key] for one in controls if key in one.rates])
                 for own, controls in beside if key in own.rates]
        pairs = [one for one in pairs if one[1]]
        if is_lower([own for own, _ in pairs], [others for _, others in pairs], CONFIRM_CHANCE):
            yield key, np.array([[own, float(np.median(others))] for own, others in pairs])


def _slow_links(rounds: Sequence[Round], meetings: Sequence[Meeting]) -> Iterator[NodeVerdict]:
    for link, beside in _beside(rounds, meetings, PAIRS).items():
        for key, rates in _lower_keys(beside):
            text = _slow("", _fact_of(beside[0][0], key), rates, 0, key[0], (len(rates),) * 2)
            for name in link:
                yield NodeVerdict(
                    name, SUSPECT, f"{PAIRS}: the link of {' and '.join(link)}: "
                    f"{text.reason.removeprefix(f'{PAIRS}: ')}", PAIRS, key[0], text.value,
                    text.expected, tuple(own.round for own, _ in beside))


# ---- the ladder


def ladder_verdicts(
    job: Job, rounds: Sequence[Round], facts: Sequence[Fact],
) -> Iterator[NodeVerdict]:
    """Yield the nodes that are bad or suspect in groups of their own ranks, and of nodes."""
    yield from alone_verdicts(job, rounds, facts, stage=LADDER)
    meetings = meetings_of(rounds, facts, LADDER)
    yield from faulty_nodes(meetings)
    yield from slow_in_groups(rounds, meetings)


def slow_in_groups(
    rounds: Sequence[Round], meetings: Sequence[Meeting],
) -> Iterator[NodeVerdict]:
    """Yield the nodes with which groups are slower than groups without them, as confirmed."""
    for name, beside in _beside_node(rounds, meetings).items():
        for key, rates in _lower_keys(beside):
            size = len(beside[0][0].nodes)
            yield _slow(name, _fact_of(beside[0][0], key), rates, 0,
                        f"{key[0]} of groups of {size} nodes with it", (len(rates),) * 2)


def _beside_node(
    rounds: Sequence[Round], meetings: Sequence[Meeting],
) -> dict[str, list[tuple[Meeting, list[Meeting]]]]:
    """Return the first node of first groups -> as `_beside`, where it is in none of the controls;
    of groups of one size."""
    beside = grouped(((nodes[0], len(nodes)), one)
                     for nodes, some in _beside(rounds, meetings, LADDER).items()
                     for one in some if not any(nodes[0] in other.nodes for other in one[1]))
    return {name: some for (name, _), some in beside.items()
            if len(some) > 1 and any(controls for _, controls in some)}


# ---- what is not known


def _untested(
    job: Job, of_stage: Mapping[str, Sequence[Fact]], limits: HuntLimits,
    bad: Collection[str], doubtful: Collection[str],
) -> Iterator[NodeVerdict]:
    """Yield the nodes of which too little was measured, or compared, to be good."""
    chosen = (job.only, *job.partners) if job.only else [node.name for node in job.nodes]
    measured = {stage: _times_measured(some) for stage, some in of_stage.items()}
    n = len(chosen)
    paired = sum(1 for name in chosen if measured.get(PAIRS, {}).get(name))
    has_peers = paired >= MIN_RANKS or bool(job.only and len(job.partners) == CONFIRMED)
    columns = n if not job.only else 1 + len(job.partners)
    passes = CONFIRMED if not has_peers else passes_needed(
        columns, MOST_TESTED / LOOKS if job.only else None)
    compared = {name for facts in of_stage.values() for fact in facts
                if limits.has_speeds and limits.expected(fact) for name in fact.members}
    pair_rounds = min(n - 1, CONFIRMED)
    for name in chosen:
        times = {stage: measured.get(stage, {}).get(name, 0) for stage in (ALONE, PAIRS, LADDER)}
        why = ""
        needed = (CONFIRMED if name in compared else passes if name in doubtful else
                  min(passes, FEWEST_PASSES))
        if times[ALONE] < needed:
            why = (f"measured alone in {plural(times[ALONE], 'round')}, which is too few: "
                   f"{needed} are needed")
        elif n > 1 and times[PAIRS] < pair_rounds:
            why = f"measured in {plural(times[PAIRS], 'round')} of pairs, which is too few"
        elif n - len({*bad} & {*chosen}) >= FEWEST_OF_LADDER and not times[LADDER]:
            why = "not measured in a group of the ladder"
        elif not has_peers and name not in compared:
            why = (f"its speed was not compared: to tell which of {plural(paired or n, 'node')} is "
                   "slow takes --reference FILE or --minimum FILE")
        if why:
            yield NodeVerdict(name, NOT_TESTED, why)


def _times_measured(facts: Sequence[Fact]) -> dict[str, int]:
    """Return node -> the number of rounds in which something with a speed was measured."""
    numbers: dict[str, set[int]] = {}
    for fact in facts:
        if fact.outcome == MEASURED and rate_of(fact) is not None and (
                MEASURES[fact.measure].good not in (EQUAL, ZERO)):
            for name in fact.members:
                numbers.setdefault(name, set()).add(fact.round)
    return {name: len(some) for name, some in numbers.items()}


def _notes(job: Job, facts: Sequence[Fact], limits: HuntLimits) -> Iterator[str]:
    used = {(fact.measure, fact.ranks, fact.size_bytes) for fact in facts
            if fact.outcome == MEASURED}
    if limits.minimum and (left := [one for one in limits.minimum if one not in used]):
        measure, ranks, size = left[0]
        yield (f"minimum: {plural(len(left), 'row')} of {len(limits.minimum)} met no measurement, "
               f"as {measure} of {plural(ranks, 'rank')} and {size} bytes")
    if limits.vouched:
        yield f"reference: {names_text(limits.vouched)} counts as good by --vouch, not by a hunt"
    if limits.reference and not any(like(fact) in limits.reference for fact in facts):
        yield "reference: none of its measurements was made again; it decided nothing"
    paired = {frozenset(fact.members) for fact in facts if fact.stage == PAIRS
              and fact.outcome == MEASURED}
    names = {name for pair in paired for name in pair}
    if paired and len(paired) < (every := len(names) * (len(names) - 1) // 2):
        yield (f"links: {len(paired)} of {every} were measured; --stage-seconds measures more in "
               "a longer time")
    largest = max((len(fact.members) for fact in facts if fact.stage == LADDER), default=0)
    if largest > 1 and not limits.has_speeds:
        yield (f"groups of {largest} nodes: there is no other such group, so their speed was not "
               "judged; --reference FILE or --minimum FILE does")
