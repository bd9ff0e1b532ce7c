"""How unevenly tokens go to experts: loads, the routing that has one, and the bytes that follow.

A routing is computed from whole numbers and a seed alone, so that every rank and implementation has
the same one. ``max_over_mean`` is the load of the busiest expert over the mean: MaxVio + 1 (Wang et
al., arXiv 2408.15664). DeepEP (pull request 393) and vllm (57598) measure with ``lognormal``."""

from __future__ import annotations

import math
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from hpcbench.errors import CaseError, FileError
from hpcbench.records import dataclass
from hpcbench.texts import file_hash
from hpcbench.units import plural, shortened

BALANCED, LOGNORMAL, ZIPF, MAX_OVER_MEAN, MATRIX = (
    "balanced", "lognormal", "zipf", "max_over_mean", "matrix")
NUMBERED = (LOGNORMAL, ZIPF, MAX_OVER_MEAN)
"""Loads that have a number: sigma, exponent, the ratio."""
LOADS = (BALANCED, *NUMBERED, MATRIX)
DEDUPS = ("rank", "expert")
"""How often a token is sent: once to each rank that has one of its experts, or to each expert."""
SAME, FP8 = "dtype", "fp8"
"""Element types of tokens on the way to experts beside those with a name: that of the arithmetic,
and e4m3."""
PATTERN = (rf"{MATRIX}|({BALANCED}|({'|'.join(NUMBERED)}):[0-9]{{1,6}}([.][0-9]{{1,6}})?)"
           r"(,seed=[0-9]{1,9})?")
FORMS = f"{BALANCED}, {', '.join(f'{name}:NUMBER' for name in NUMBERED)}"
WANTED = f"write {FORMS} or {MATRIX}; a seed follows as ,seed=NUMBER"
MOST_EXPERTS = 2**16  # of a block; published models have hundreds
_MOST = 100.0
"""Of sigma and exponent; more changes nothing."""
_PARTS = 2**40
"""The popularity of the most popular expert, in whole numbers."""
_MOST_CELL, _MOST_FILE_BYTES = 2**44, 2**28
_SETS = 4096
"""About as many distinct sets of experts as a routing has at most."""


@dataclass(frozen=True, slots=True)
class Load:
    """How popular experts are: a name of LOADS, its number, and the seed of who is popular."""

    name: str
    number: float = 0.0
    seed: int = 0

    @classmethod
    def from_text(cls, text: str) -> Load:
        """Return the load of a `text`, such as ``zipf:1.2,seed=3``. Raises ValueError."""
        if re.fullmatch(PATTERN, text) is None:
            raise ValueError(f'"{shortened(text)}" is no load; {WANTED}')
        words, _, seed = text.partition(",seed=")
        name, _, number = words.partition(":")
        load = cls(name, float(number or 0), int(seed or 0))
        if name == MAX_OVER_MEAN and load.number < 1:
            raise ValueError(f"{text}: the largest load is at least the mean: write a ratio from 1")
        if load.number > _MOST and name != MAX_OVER_MEAN:
            raise ValueError(f"{text}: is more than {_MOST:g}")
        return load

    @property
    def text(self) -> str:
        number = f":{f'{self.number:.6f}'.rstrip('0').rstrip('.')}" if self.name in NUMBERED else ""
        return f"{self.name}{number}{f',seed={self.seed}' if self.seed else ''}"

    def unfit(self, experts: int, top_k: int = 1) -> str | None:
        """Return why no routing of ``top_k`` different experts a token has this load, or None."""
        if experts > MOST_EXPERTS:
            return f"{experts} experts are more than {MOST_EXPERTS}"
        if top_k > experts:
            return f"top_k {top_k} is more than {plural(experts, 'expert')}"
        if self.name == MAX_OVER_MEAN and self.number > experts / top_k:
            return (f"{self.text}: a token goes to {plural(top_k, 'expert')} of {experts}, so the "
                    f"largest load is at most {experts / top_k:g} x the mean")
        return None


def is_load(text: str) -> bool:
    """Return whether a text is a load, and no other way to divide data."""
    return re.fullmatch(PATTERN, text) is not None


def max_over_mean(values: Sequence[int]) -> float:
    """Return the largest over the mean; 1 where all are 0."""
    whole = sum(values)
    return max(values) * len(values) / whole if whole else 1.0


class ExpertTraffic(NamedTuple):
    """What each rank sends, what it receives, and what it keeps of its own: copies, or bytes."""

    sent: tuple[int, ...]
    received: tuple[int, ...]
    kept: tuple[int, ...]

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> ExpertTraffic:
        """Return that of ``rows[sender][receiver]``."""
        return cls(tuple(map(sum, rows)), tuple(map(sum, zip(*rows, strict=True))),
                   tuple(row[rank] for rank, row in enumerate(rows)))

    @property
    def busiest(self) -> int:
        """Return the most that a rank sends or receives: nccl-tests' size of an alltoallv."""
        return max(*self.sent, *self.received)

    @property
    def busiest_wire(self) -> int:
        """Return the most that a rank sends to others, or receives from them."""
        return max(max(sent, received) - kept
                   for sent, received, kept in zip(*self, strict=True))

    @property
    def max_over_mean(self) -> float:
        """Return the most that a rank receives over the mean of all; 1 where nothing is sent."""
        return max_over_mean(self.received)


@dataclass(frozen=True, slots=True)
class ByteMatrix:
    """Bytes from rank to rank, ``rows[sender][receiver]``, and the hash of their file."""

    rows: tuple[tuple[int, ...], ...]
    sha256: str

    def of(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """Return the upper left part, of so many ranks."""
        return tuple(row[:ranks] for row in self.rows[:ranks])

    def unfit(self, ranks: int, unit_bytes: int, unit: str) -> str | None:
        """Return why it is none of so many ranks that send whole units, or None."""
        if len(self.rows) < ranks:
            return f"matrix: has {plural(len(self.rows), 'rank')}, fewer than {ranks}"
        return next((f"matrix: {cell} B from rank {sender} to rank {receiver} are no whole number "
                     f"of {unit} of {unit_bytes} B" for sender, row in enumerate(self.of(ranks))
                     for receiver, cell in enumerate(row) if cell % unit_bytes), None)

    def unfit_tokens(self, ranks: int, tokens: int, top_k: int, token_bytes: int) -> str | None:
        """Return why a rank's tokens, each to at most ``top_k`` ranks, cannot make it, or None."""
        if problem := self.unfit(ranks, token_bytes, "tokens"):
            return problem
        for sender, row in enumerate(self.of(ranks)):
            for bytes_, most, where in ((max(row), tokens, "one rank"),
                                        (sum(row), tokens * top_k, "all ranks")):
                if bytes_ > most * token_bytes:
                    return (f"matrix: rank {sender} sends {bytes_} B to {where}, more than {most} "
                            f"copies of tokens of {token_bytes} B: give more tokens, or a larger "
                            "top_k")
        return None


def read_matrix(path: str) -> ByteMatrix:
    """Return the table of a file as nccl-tests' alltoallv takes it: numbers between blanks, a line
    for each sender, square; nccl-tests rounds down to 16 bytes, this does not.

    Raises FileError for any other content."""
    content = _content(path)
    lines = [line.split() for line in content.split(b"\n") if line.strip()]
    width = len(lines)
    for number, line in enumerate(lines, 1):
        if len(line) != width:
            raise FileError(f"{path}: row {number} has {len(line)} columns and there are {width} "
                            "rows; write a square table of bytes, a row for each sender")
    if not lines:
        raise FileError(f"{path}: is empty; write a square table of bytes, a row for each sender")
    return ByteMatrix(tuple(
        tuple(_cell(path, row, column, cell) for column, cell in enumerate(line, 1))
        for row, line in enumerate(lines, 1)), file_hash(content))


def _content(path: str) -> bytes:
    try:
        status = os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{path}: is not a regular file")
        if status.st_size > _MOST_FILE_BYTES:
            raise FileError(f"{path}: has more than {_MOST_FILE_BYTES} B, too much for a table")
        return Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise FileError(f"{path}: cannot be read: {error}") from error


def _cell(path: str, row: int, column: int, cell: bytes) -> int:
    """Return the bytes of a cell: a whole number, also as 1e6, which nccl-tests reads, too."""
    is_number = re.fullmatch(rb"[0-9]{1,20}([.][0-9]{0,20})?([eE][+]?[0-9]{1,2})?", cell)
    value = float(cell) if is_number else -1.0
    if not value.is_integer() or not 0 <= value <= _MOST_CELL:
        text = shortened(cell.decode("ascii", "backslashreplace"))
        raise FileError(f"{path}: row {row}, column {column}: {text} is no whole number of bytes "
                        f"from 0 to {_MOST_CELL}")
    return int(value)


def planned_matrix(path: str, sha256: str) -> ByteMatrix:
    """Return the table that was planned. Raises CaseError for another one, or none."""
    try:
        matrix = read_matrix(path)
    except FileError as error:
        raise CaseError(f"{error}; it must be there on every node") from error
    if matrix.sha256 != sha256:
        raise CaseError(f"{path} has changed since the plan was made")
    return matrix


@lru_cache(maxsize=256)
def popularity(load: Load, experts: int) -> tuple[int, ...]:
    """Return in which proportion tokens go to experts; in whole numbers, the largest is 2^40.

    Logarithms are quantiles of a normal distribution times sigma, or of Zipf's law; the seed
    decides which expert has which. For ``max_over_mean`` sigma is solved for the ratio."""
    if load.name == ZIPF:
        logs = [-load.number * math.log(place + 1) for place in range(experts)]
    elif load.name in (LOGNORMAL, MAX_OVER_MEAN):
        scores = _normal_scores(experts)
        sigma = load.number if load.name == LOGNORMAL else _sigma(load.number, scores)
        logs = [sigma * score for score in scores]
    else:
        return (1,) * experts
    order = _shuffled(experts, load.seed, "experts")
    parts = dict(zip(order, _parts(logs), strict=True))
    return tuple(parts[expert] for expert in range(experts))


def _normal_scores(count: int) -> list[float]:
    """Return quantiles of the normal distribution, the largest first."""
    from statistics import NormalDist

    quantile = NormalDist().inv_cdf
    return [-quantile((place + 0.5) / count) for place in range(count)]


def _parts(logs: Sequence[float]) -> list[int]:
    """Return exp(log) over the largest in whole numbers from 1; no last bit of exp decides them."""
    return [max(round(math.exp(log - logs[0]) * _PARTS), 1) for log in logs]


def _sigma(ratio: float, scores: Sequence[float]) -> float:
    """Return the sigma at which the largest exp(sigma score) is the ratio times their mean."""
    low, high = 0.0, _MOST
    for _ in range(60):
        sigma = (low + high) / 2
        parts = _parts([sigma * score for score in scores])
        low, high = (sigma, high) if parts[0] * len(parts) < ratio * sum(parts) else (low, sigma)
    return high


def _shuffled(count: int, *seed: object) -> list[int]:
    """Return the numbers below count in an order that the seed alone decides.

    `random.Random.random` gives the same numbers in every version of Python; `shuffle` need not."""
    import random  # it takes longer to load than most plans need for all else here

    draw = random.Random(":".join(map(str, seed))).random
    keys = [draw() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def tokens_of_experts(load: Load, tokens: int, experts: int, top_k: int) -> tuple[int, ...]:
    """Return how many of all ranks' tokens each expert gets, together tokens x top_k.

    The share of an expert, rounded; none gets more than all tokens: the others get the rest."""
    parts = popularity(load, experts)
    counts, rest, others = [tokens] * experts, tokens * top_k, list(range(experts))
    while full := _full(parts, others, rest, tokens):
        rest -= tokens * len(full)
        others = [expert for expert in others if expert not in full]
    for expert, count in zip(others, _divided(rest, [parts[one] for one in others]), strict=True):
        counts[expert] = count
    return tuple(counts)


def _full(parts: Sequence[int], others: Sequence[int], rest: int, tokens: int) -> set[int]:
    """Return the experts whose share of the rest would be all tokens, or more."""
    whole = sum(parts[expert] for expert in others)
    return {expert for expert in others if parts[expert] * rest >= tokens * whole}


def _divided(total: int, parts: Sequence[int]) -> list[int]:
    """Return whole shares of a total (method of the largest remainder, the first of equals)."""
    whole = sum(parts)
    counts = [total * part // whole for part in parts]
    lacking = sorted(range(len(parts)), key=lambda one: -(total * parts[one] % whole))
    for one in lacking[:total - sum(counts)]:
        counts[one] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts each token goes to, as runs of tokens that have the same.

    A rank has ``tokens``. Token l of rank r has number l x ranks + r; those from ``starts[i]`` to
    the next start go to the experts ``sets[i]``, all different. Ranks have equally many experts, in
    their order."""

    ranks: int
    tokens: int
    experts: int
    starts: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]

    def experts_of(self, rank: int) -> list[tuple[int, ...]]:
        """Return the experts of each of a rank's tokens, in their order."""
        return [self.sets[bisect_right(self.starts, number) - 1]
                for number in range(rank, self.ranks * self.tokens, self.ranks)]

    def of_experts(self) -> tuple[int, ...]:
        """Return how many tokens each expert gets."""
        counts = [0] * self.experts
        for first, end, experts in self._runs():
            for expert in experts:
                counts[expert] += end - first
        return tuple(counts)

    def traffic(self, dedup: str) -> ExpertTraffic:
        """Return the sums of the copies from rank to rank, without making these."""
        ranks, whole = self.ranks, 0
        steps, received, kept = [0] * ranks, [0] * ranks, [0] * ranks
        for first, end, experts in self._runs():
            receivers = copies(experts, self.experts // ranks, dedup)
            every, more = divmod(end - first, ranks)
            whole += len(receivers) * every + len(receivers) * (first % ranks + more >= ranks)
            steps[first % ranks] += len(receivers)
            steps[(first + more) % ranks] -= len(receivers)
            for receiver in receivers:
                received[receiver] += end - first
                kept[receiver] += _congruent(first, end, ranks, receiver)
        sent = [whole + step for step in accumulate(steps)]
        return ExpertTraffic(tuple(sent), tuple(received), tuple(kept))

    def _runs(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        ends = (*self.starts[1:], self.ranks * self.tokens)
        yield from zip(self.starts, ends, self.sets, strict=True)


@dataclass(frozen=True, slots=True)
class GivenRouting:
    """The same by a table: ``cells[sender][receiver]`` are the copies that one rank sends another.

    A token goes to a rank at most once, there to one of its experts: these take turns, and copies
    of a rank's tokens go round these. `token_copies.ExpertTables` has them one by one."""

    ranks: int
    tokens: int
    experts: int
    cells: tuple[tuple[int, ...], ...]

    def of_experts(self) -> tuple[int, ...]:
        each, counts = self.experts // self.ranks, [0] * self.experts
        for sender, row in enumerate(self.cells):
            for receiver, count in enumerate(row):
                for turn in range(min(each, count)):
                    counts[receiver * each + (sender + turn) % each] += -(-(count - turn) // each)
        return tuple(counts)

    def traffic(self, dedup: str) -> ExpertTraffic:
        return ExpertTraffic.of_rows(self.cells)


AnyRouting = Routing | GivenRouting


def copies(experts: Sequence[int], experts_of_rank: int, dedup: str) -> Sequence[int]:
    """Return the ranks that a token with these experts is sent to, once for each copy."""
    ranks = [expert // experts_of_rank for expert in experts]
    return tuple(dict.fromkeys(ranks)) if dedup == "rank" else ranks


def _congruent(first: int, end: int, modulus: int, rest: int) -> int:
    """Return how many of the numbers from first to end have this rest."""
    return (end - rest + modulus - 1) // modulus - (first - rest + modulus - 1) // modulus


@lru_cache(maxsize=64)
def route(load: Load, ranks: int, tokens: int, experts: int, top_k: int) -> Routing:
    """Return the routing of ``tokens`` a rank that gives experts what `tokens_of_experts` says.

    Tokens are dealt to blocks. In each, the experts' tokens lie in a line, in an order by the seed;
    token t takes those at t, t + length, t + 2 length ...: an expert has no more than length, so
    that all are different. ``experts`` is a multiple of ``ranks``, the load is not ``matrix``."""
    total = ranks * tokens
    counts = tokens_of_experts(load, total, experts, top_k)
    most = min(max(_SETS // experts, 8), max(total // experts, 1))
    blocks = max(one for one in range(1, most + 1) if total % one == 0)
    length = total // blocks
    lines = [0, *accumulate(counts)]
    runs = []
    for block in range(blocks):
        order = _shuffled(experts, load.seed, "block", block)
        ends = list(accumulate(_congruent(lines[one], lines[one + 1], blocks, block)
                               for one in order))
        runs += [(block * length + start, tuple(
            order[bisect_right(ends, start + turn * length)] for turn in range(top_k)))
            for start in sorted({0, *(end % length for end in ends)})]
    starts, sets = zip(*runs, strict=True)
    return Routing(ranks, tokens, experts, starts, sets)


def route_given(
    matrix: ByteMatrix, ranks: int, tokens: int, experts: int, row_bytes: int,
) -> GivenRouting:
    """Return the routing by which bytes from rank to rank are those of the matrix."""
    return GivenRouting(ranks, tokens, experts, tuple(
        tuple(cell // row_bytes for cell in row) for row in matrix.of(ranks)))
