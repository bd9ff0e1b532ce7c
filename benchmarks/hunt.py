"""Does a hunt accuse good nodes, does it name bad ones, and what do 1,024 nodes cost it?

    python benchmarks/hunt.py [--nodes 8 32 1024] [--runs 100] [--first 0] [--planted]

Nothing is started: a simulated machine answers for execution, and planning and judgement are the
real ones. Clean machines have noise: independent, dependent from round to round (AR), of two modes,
or with heavy tails, each of several sizes. Goals: at most 1 % of the runs of clean machines accuse
anyone, 1,024 nodes are planned and judged in 10 s and 500 MiB. With --planted runs have a
slow node, or a slow link, of `PLANTED` of the rate: how often are these named, and no other?
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from hpcbench.fleet.hunt.facts import (
    ALONE,
    BAD,
    GOOD,
    HANG,
    LADDER,
    MISSING,
    NO_ANSWER,
    PAIRS,
    STAGES,
    SUSPECT,
    UNTESTED,
    WRONG,
    Company,
    Fact,
    Job,
    Node,
    Round,
)
from hpcbench.fleet.hunt.judge import HuntJudgement, judge
from hpcbench.fleet.hunt.limits import HuntLimits
from hpcbench.fleet.hunt.plan import ROUND_S, Hunt

NOISES = ("iid", "AR .5", "AR .9", "two modes", "heavy tails")
SIZES = (0.01, 0.03)
PLANTED = 0.7
MOST_ACCUSED, MOST_S, MOST_BYTES = 0.01, 10.0, 500 * 2**20
USUAL: Mapping[str, float] = {
    "gemm": 1e12, "memory": 1e11, "storage": 1e9, "bandwidth": 2e10, "latency": 5e-6,
    "all_reduce": 1e10}
MEASURED_IN: Mapping[str, Sequence[str]] = {
    ALONE: ("gemm", "memory", "storage"), PAIRS: ("bandwidth", "latency", "all_reduce"),
    LADDER: ("all_reduce",)}


def noise(kind: str, size: float, before: npt.NDArray[np.float64] | None, n: int,
          rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return logarithms of rates of n nodes; ``before`` are those of the round before."""
    if kind == "two modes":
        return np.where(rng.random(n) < 0.3, -10 * size, 0.0) + size * rng.normal(size=n) / 3
    if kind == "heavy tails":
        return -size * np.abs(rng.standard_t(2, n))
    share = float(kind.removeprefix("AR ")) if kind.startswith("AR") else 0.0
    fresh = size * rng.normal(size=n)
    return fresh if before is None else share * before + np.sqrt(1 - share ** 2) * fresh


@dataclass
class Machine:
    """A simulated machine that answers for execution.

    ``slow``: node -> (stages, least nodes of a group, share of the usual rate).
    ``faulty``: node -> (outcome, stages, least nodes). ``links``: pair -> share of the rate."""

    nodes: int
    kind: str = "iid"
    size: float = 0.01
    seed: int = 0
    ranks: int = 1
    per_switch: int = 0
    slow: Mapping[str, tuple[Sequence[str], int, float]] = field(default_factory=dict)
    faulty: Mapping[str, tuple[str, Sequence[str], int]] = field(default_factory=dict)
    links: Mapping[frozenset[str], float] = field(default_factory=dict)
    slow_switch: tuple[str, float] = ("", 1.0)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.names = [f"node{number:04}" for number in range(self.nodes)]
        self.switch = {name: f"leaf{at // self.per_switch}" if self.per_switch else ""
                       for at, name in enumerate(self.names)}
        self.at = {name: at for at, name in enumerate(self.names)}
        self.state: dict[str, npt.NDArray[np.float64]] = {}
        self.now_s = 0.0

    def job(self, *, stage_s: float = 45.0, only: str = "", partners: tuple[str, ...] = ()) -> Job:
        nodes = tuple(Node(name, tuple(range(at * self.ranks, (at + 1) * self.ranks)),
                           self.switch[name]) for at, name in enumerate(self.names))
        return Job(nodes, stage_s, only, partners)

    def execute(self, step: Round) -> list[Fact]:
        """Return the facts of a round."""
        for measure in MEASURED_IN[step.stage]:
            self.state[measure] = noise(self.kind, self.size, self.state.get(measure), self.nodes,
                                        self.rng)
        self.now_s += ROUND_S
        return [replace(fact, at_s=self.now_s) for group in step.groups
                for fact in self._group(step, group)]

    def _group(self, step: Round, group: Company) -> Iterator[Fact]:
        nodes = group.nodes
        alone = step.stage == ALONE
        node, peers = (nodes[0], ()) if alone else ("", nodes)
        for name in nodes:
            outcome, stages, least = self.faulty.get(name, ("", (), 0))
            if step.stage in stages and len(nodes) >= least:
                named = alone or outcome == NO_ANSWER
                yield Fact(step.stage, step.number, name if named else "", "answers"
                           if outcome == NO_ANSWER else "devices" if outcome == MISSING else
                           MEASURED_IN[step.stage][0], None, outcome,
                           tuple(one for one in nodes if one != name) if named else peers)
                if named and not alone:
                    yield Fact(step.stage, step.number, "", "all_reduce", None, UNTESTED, peers)
                return
        if alone:
            yield Fact(step.stage, step.number, node, "devices", 8.0)
        for measure in MEASURED_IN[step.stage]:
            yield from self._speed(step, group, measure)

    def _speed(self, step: Round, group: Company, measure: str) -> Iterator[Fact]:
        nodes = group.nodes
        rates = self.state[measure][[self.at[name] for name in nodes]] + np.log([
            share if step.stage in stages and len(nodes) >= least else 1.0
            for stages, least, share in (self.slow.get(name, ((), 0, 1.0)) for name in nodes)])
        log = float(rates.min())
        if len(nodes) > 1:
            log += self.size * float(self.rng.normal()) / 3
            log += np.log(self.links.get(frozenset(nodes), 1.0) if len(nodes) == 2 else 1.0)
            crossed = {self.switch[name] for name in nodes}
            if self.slow_switch[0] in crossed and len(crossed) > 1:
                log += np.log(self.slow_switch[1])
        if step.stage == ALONE:
            for rank in range(self.ranks):
                own = log + (self.size * float(self.rng.normal()) / 3 if self.ranks > 1 else 0.0)
                yield Fact(ALONE, step.number, nodes[0], measure, USUAL[measure] * np.exp(own),
                           rank=self.at[nodes[0]] * self.ranks + rank)
            return
        value = USUAL[measure] * np.exp(-log if measure == "latency" else log)
        yield Fact(step.stage, step.number, "", measure, float(value), peers=nodes,
                   ranks=len(nodes) * (group.ranks_per_node or self.ranks), size_bytes=2**20)


def hunted(machine: Machine, job: Job | None = None, limits: HuntLimits | None = None,
           ) -> tuple[Hunt, HuntJudgement]:
    """Return the hunt on a machine, and its judgement."""
    hunt = Hunt(job or machine.job(), machine.execute)
    for _ in hunt.run():
        pass
    return hunt, judge(hunt.job, hunt.rounds, hunt.facts, limits or HuntLimits())


def accused(judgement: HuntJudgement) -> list[str]:
    """Return the nodes that are bad or suspect."""
    return [*judgement.names(BAD), *judgement.names(SUSPECT)]


def false_alarms(nodes: int, kind: str, size: float, seeds: Iterable[int]) -> int:
    """Return how many of the clean runs with these seeds accuse anyone."""
    return sum(bool(accused(hunted(Machine(nodes, kind, size, seed))[1])) for seed in seeds)


def found(nodes: int, kind: str, size: float, seeds: Iterable[int]) -> tuple[int, int]:
    """Return in how many of the runs with these seeds a slow node is bad, and no other one accused,
    and in how many the ends of a slow link are suspect or bad, and no other node."""
    slow, link = "node0001", ("node0000", "node0003")
    n_nodes = n_links = 0
    for seed in seeds:
        _, judged = hunted(Machine(nodes, kind, size, seed, slow={slow: (STAGES, 0, PLANTED)}))
        n_nodes += judged.names(BAD) == [slow] and not judged.names(SUSPECT)
        _, judged = hunted(Machine(nodes, kind, size, seed, links={frozenset(link): PLANTED}))
        n_links += sorted(accused(judged)) == [*link]
    return n_nodes, n_links


def main() -> None:
    """Print the figures; tell a missed goal by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--runs", type=int, default=100, help="of each noise and size")
    parser.add_argument("--first", type=int, default=0, help="seed, to add to earlier runs")
    parser.add_argument("--largest", type=int, default=1024, help="nodes of the timed hunt")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of a node of the timed hunt")
    parser.add_argument("--planted", action="store_true", help="a slow node, or link, in each")
    asked = parser.parse_args()
    seeds, missed = range(asked.first, asked.first + asked.runs), False
    for nodes in asked.nodes:
        total = 0
        for kind in NOISES if asked.planted else ():
            both = [found(nodes, kind, size, seeds) for size in SIZES]
            print(f"{nodes:5} nodes, {kind:<11}: " + ", ".join(
                f"noise {size:.0%}: node in {n_nodes}, link in {n_links} of {asked.runs}"
                for size, (n_nodes, n_links) in zip(SIZES, both, strict=True)), flush=True)
        if asked.planted:
            continue
        for kind in NOISES:
            counts = [false_alarms(nodes, kind, size, seeds) for size in SIZES]
            total += sum(counts)
            print(f"{nodes:5} nodes, {kind:<11}: "
                  + ", ".join(f"noise {size:.0%}: {count} of {asked.runs} accuse"
                              for size, count in zip(SIZES, counts, strict=True)), flush=True)
        runs = len(NOISES) * len(SIZES) * asked.runs
        low, high = binomtest(total, runs).proportion_ci()
        print(f"{nodes:5} nodes, all        : {total} of {runs} accuse, 95 % interval "
              f"{low:.2%} to {high:.2%}", flush=True)
        missed |= total > MOST_ACCUSED * runs
    missed |= not _scale(asked.largest, asked.ranks)
    sys.exit(int(missed))


def _scale(nodes: int, ranks: int) -> bool:
    """Print what a hunt on many nodes costs beside its measurements; return whether it is little.
    """
    machine = Machine(nodes, "heavy tails", 0.01, ranks=ranks, per_switch=16, slow={
        "node0007": ((ALONE,), 0, 0.7), "node0001": ((LADDER,), max(4, nodes // 8), 0.6)},
        faulty={"node0003": (HANG, (PAIRS, LADDER), 0), "node0005": (WRONG, (LADDER,), 4)})
    simulated_s = 0.0

    def timed(execute: Callable[[Round], list[Fact]]) -> Callable[[Round], list[Fact]]:
        def wrapped(step: Round) -> list[Fact]:
            nonlocal simulated_s
            began_s = time.process_time()
            facts = execute(step)
            simulated_s += time.process_time() - began_s
            return facts
        return wrapped

    began_s = time.process_time()
    hunt = Hunt(machine.job(), timed(machine.execute))
    for _ in hunt.run():
        pass
    judgement = judge(hunt.job, hunt.rounds, hunt.facts, HuntLimits())
    took_s = time.process_time() - began_s - simulated_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{nodes} nodes of {ranks} ranks: {len(hunt.rounds)} rounds, {len(hunt.facts)} facts; "
          f"planned and judged in {took_s:.1f} s of a core, {peak / 2**20:.0f} MiB at most; bad: "
          f"{', '.join(judgement.names(BAD))}; suspect: {', '.join(judgement.names(SUSPECT))}; "
          f"{len(judgement.names(GOOD))} good")
    return took_s <= MOST_S and peak <= MOST_BYTES


if __name__ == "__main__":
    main()
