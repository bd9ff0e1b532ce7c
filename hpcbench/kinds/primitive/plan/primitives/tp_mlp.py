"""tp_mlp: Y = act(X W1) W2, columns of W1 and rows of W2 on the ranks.

X is (m, k), W1 is (k, n), W2 is (n, k), Y is (m, k): m tokens, hidden size k, inner size n.

- ``sequence_parallel``: a rank has rows of X; all-gather before, reduce-scatter after, and it
  keeps rows of Y.
- ``AR_after``: each rank has all of X; all-reduce after, and all of Y.
"""

from __future__ import annotations

from hpcbench.kinds.primitive.plan.spec import (
    PrimitiveSpec,
    Problem,
    Traffic,
    Work,
    not_divided,
    on_every_rank,
)
from hpcbench.plan.options import Values


def work(problem: Problem) -> Work:
    """Return 4 m n k flops, divided among the ranks; the activation is not counted."""
    p, flops = problem, 2 * problem.product_flops
    size = p.m * p.k * p.element_bytes
    wire = size * (p.ranks - 1) // p.ranks
    traffic: tuple[Traffic, ...] = (Traffic("all_reduce", size, 2 * wire),)
    if p.order == "sequence_parallel":
        traffic = (Traffic("all_gather", size, wire), Traffic("reduce_scatter", size, wire))
    return Work(flops // p.ranks, flops, traffic)


def unfit(problem: Problem) -> str | None:
    """Return why the inner extent, or the tokens, cannot be divided."""
    rows = {"m": problem.m} if problem.order == "sequence_parallel" else {}
    return not_divided(problem.ranks, n=problem.n, **rows)


SPEC = PrimitiveSpec(
    name="tp_mlp", meaning="column-wise product, activation, row-wise product: Y = act(X W1) W2",
    orders=("sequence_parallel", "AR_after"), work=work,
    unsharded=on_every_rank(lambda problem: 2 * problem.product_flops), unfit=unfit,
    inputs="hpcbench.kinds.primitive.run.inputs:Mlp",
    options={"activation": Values("relu", ("relu", "gelu"))}, layers=("mlp",),
    divides_layer=True)
