"""ep_all_to_all: tokens travel to the rank of their expert, through its product, and back.

X is (m, k): m / d tokens a rank, sorted by expert. Rank e holds one expert, W_e of (k, n). A token
of expert e becomes y = x W_e; Y is (m, n), and each rank ends with those of its own tokens, in
their order. ``split`` says how many tokens of each rank go to each expert (`sizes.weights`).

- ``dispatch_combine``: an all_to_all of tokens, the product, an all_to_all of results.
"""

from __future__ import annotations

from hpcbench.config.names import SPLITS
from hpcbench.kinds.primitive.plan.spec import (
    PrimitiveSpec,
    Problem,
    Traffic,
    Work,
    not_divided,
    on_every_rank,
)
from hpcbench.operations.sizes import weights
from hpcbench.plan.options import Values


def tokens_of_experts(split: str, ranks: int, tokens: int) -> tuple[int, ...]:
    """Return how many of a rank's ``tokens`` go to each expert: its share, to less than a token.

    Shares are rounded down, and what is left over goes to those that lost most, the first of
    equals (method of the largest remainder).
    """
    shares = weights(split, ranks)
    whole = sum(shares)
    counts = [tokens * share // whole for share in shares]
    lacking = sorted(range(ranks), key=lambda expert: -(tokens * shares[expert] % whole))
    for expert in lacking[:tokens - sum(counts)]:
        counts[expert] += 1
    return tuple(counts)


def work(problem: Problem) -> Work:
    """Return 2 m n k flops over all ranks, and those of the expert with the most tokens.

    The sizes are those of nccl-tests' alltoallv: the most that a rank sends or receives.
    """
    p = problem
    counts = tokens_of_experts(str(p.options["split"]), p.ranks, p.m // p.ranks)
    heaviest = max(counts) * p.ranks
    rows = max(heaviest, p.m // p.ranks)
    crossing = max(max(counts) * (p.ranks - 1), p.m // p.ranks - min(counts))
    traffic = tuple(
        Traffic("all_to_all", rows * width * p.element_bytes, crossing * width * p.element_bytes)
        for width in (p.k, p.n))
    return Work(2 * heaviest * p.n * p.k, p.product_flops, traffic)


def unfit(problem: Problem) -> str | None:
    """Return why the tokens cannot be divided."""
    return not_divided(problem.ranks, m=problem.m)


SPEC = PrimitiveSpec(
    name="ep_all_to_all", meaning="tokens to experts, product, and back: y = x W_e",
    orders=("dispatch_combine",), work=work,
    unsharded=on_every_rank(lambda problem: problem.product_flops), unfit=unfit,
    inputs="hpcbench.kinds.primitive.run.inputs:Experts",
    options={"split": Values("even", SPLITS)}, layers=("mlp_up",))
