"""How often does the diagnosis find a slow link or node, and how often one of equal ones?

    python benchmarks/diagnose_machine.py [--sweeps 1000] [--ranks 8 16 64] [--noise 0.01]
        [--tails 0]

Synthetic rates go through the pure functions of `analysis.slow_links` and `analysis.slow_nodes`;
there is no MPI. Each rate has log-normal noise (``tails`` > 0: that of Student's t with so many
degrees of freedom, scaled to the same standard deviation). Two ranks are on each host, and links
within a host are ten times as fast. A fault is one random rank, host, sender, receiver, link, one
way of a link, or pair of hosts; all of its links lose a share of their rate.

Goals: at most 1 % of clean sweeps name anything; of at least 16 ranks, in 98 % exactly the link at
fault and nothing else is named from a drop of 20 % on; nodes at 7 % are found in 95 %, with no
other. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.machine import (
    HOST,
    HOSTS,
    LINK,
    ONE_WAY,
    RANK,
    RECEIVER,
    SENDER,
    SlowSet,
    Suspects,
    cells_of,
    slow_links,
    slow_ranks,
)

KINDS = (ONE_WAY, LINK, SENDER, RECEIVER, RANK, HOST, HOSTS)
CHANCE, GOAL_CLEAN, GOAL_LINK, GOAL_NODE, NODE_DROP = 0.01, 0.01, 0.98, 0.95, 0.07
DROPS = (0.1, 0.2, 0.5)
PASSES, NODE_PASSES = 3, 6
"""Each has more noise than their mean, which is what is given; of nodes, in two cases."""
Random = np.random.Generator
Values = npt.NDArray[np.float64]


def noise(random: Random, shape: tuple[int, ...], given: argparse.Namespace) -> Values:
    """Return logarithms of noise."""
    if not given.tails:
        return np.asarray(random.normal(0, given.noise, shape))
    scale = given.noise / np.sqrt(given.tails / (given.tails - 2))
    return np.asarray(scale * random.standard_t(given.tails, shape))


def faulty(random: Random, kind: str, ranks: int) -> tuple[tuple[int, ...], Values]:
    """Return who a fault of this kind is of, and the links that it slows, (from, to)."""
    hosts = np.arange(ranks) // 2
    start, end = np.meshgrid(np.arange(ranks), np.arange(ranks), indexing="ij")
    ours, theirs = hosts[start], hosts[end]
    one, other = (int(each) for each in random.choice(ranks, 2, replace=False))
    here, there = sorted(int(each) for each in random.choice(ranks // 2, 2, replace=False))
    slow = {
        RANK: ((one,), (start == one) | (end == one)), SENDER: ((one,), start == one),
        RECEIVER: ((one,), end == one), ONE_WAY: ((one, other), (start == one) & (end == other)),
        LINK: ((min(one, other), max(one, other)), ((start == one) & (end == other))
               | ((start == other) & (end == one))),
        HOST: ((here,), (ours != theirs) & ((ours == here) | (theirs == here))),
        HOSTS: ((here, there), (np.minimum(ours, theirs) == here)
                & (np.maximum(ours, theirs) == there))}
    return slow[kind]


def look(random: Random, ranks: int, slow: Values, drop: float, given: argparse.Namespace
         ) -> Suspects[SlowSet]:
    """Return what is named in one matrix."""
    hosts = np.arange(ranks) // 2
    distances = (hosts[:, None] != hosts[None, :]).astype(np.int64)
    passes = np.where(distances == 0, 1e10, 1e9) * np.exp(
        np.sqrt(PASSES) * noise(random, (PASSES, ranks, ranks), given))
    passes = np.where(slow, passes * (1 - drop), passes)
    passes[:, np.eye(ranks, dtype=np.bool_)] = np.nan
    rates = np.exp(np.log(passes).mean(axis=0))
    return slow_links(cells_of(rates, distances, hosts, [*passes], each_way=True), CHANCE,
                      each_way=True)


def links(random: Random, ranks: int, given: argparse.Namespace) -> bool:
    """Print what is found of links; return whether a goal is missed."""
    none = np.zeros((ranks, ranks), np.bool_)
    clean = sum(bool(look(random, ranks, none, 0, given).found)
                for _ in range(given.sweeps)) / given.sweeps
    print(f"{ranks:4} ranks  links clean: {clean:.2%} name any{_word(clean <= GOAL_CLEAN)}")
    missed = clean > GOAL_CLEAN
    for kind in KINDS:
        shares = []
        for drop in DROPS:
            exact = 0
            for _ in range(given.sweeps):
                who, slow = faulty(random, kind, ranks)
                found = look(random, ranks, slow, drop, given).found
                exact += [(one.kind, one.who) for one in found] == [(kind, who)]
            shares.append(exact / given.sweeps)
        bad = ranks >= 16 and min(shares[1:]) < GOAL_LINK and kind in (LINK, ONE_WAY)
        missed |= bad
        print(f"{ranks:4} ranks  {kind}: exact at a drop of " + ", ".join(
            f"{drop:.0%}: {share:.1%}" for drop, share in zip(DROPS, shares, strict=True))
            + _word(not bad), flush=True)
    return missed


def nodes(random: Random, ranks: int, given: argparse.Namespace) -> bool:
    """Print what is found of nodes, a rank on each; return whether a goal is missed."""
    def named(slow: int | None) -> list[int]:
        passes = np.exp(np.sqrt(NODE_PASSES) * noise(random, (NODE_PASSES, ranks), given))
        if slow is not None:
            passes[:, slow] *= 1 - NODE_DROP
        rates = np.exp(np.log(passes).mean(axis=0))[None]
        return [one.rank for one in slow_ranks(rates, passes, CHANCE).found]

    clean = sum(bool(named(None)) for _ in range(given.sweeps)) / given.sweeps
    slow = [int(random.integers(ranks)) for _ in range(given.sweeps)]
    share = sum(named(one) == [one] for one in slow) / given.sweeps
    print(f"{ranks:4} nodes  clean: {clean:.2%} name any{_word(clean <= GOAL_CLEAN)}; one "
          f"{NODE_DROP:.0%} slower is named alone in {share:.1%}{_word(share >= GOAL_NODE)}",
          flush=True)
    return clean > GOAL_CLEAN or share < GOAL_NODE


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all rows; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--tails", type=int, default=0)
    given = parser.parse_args(arguments)
    random = np.random.default_rng(20_261_123)
    return int(any([one(random, ranks, given) for ranks in given.ranks for one in (links, nodes)]))


def _word(met: bool) -> str:
    return "" if met else " MISSED"


if __name__ == "__main__":
    sys.exit(main())
