"""tp_rowwise: C = A W, columns of A and rows of W on the ranks; product, and a reduction.

A is (m, k), W is (k, n), C is (m, n). Each rank's product is a partial sum of all of C.

- ``RS_after``: reduce-scatter; each rank keeps rows of C (sequence parallelism).
- ``AR_after``: all-reduce; each rank has all of C.
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


def work(problem: Problem) -> Work:
    """Return 2 m n k flops, divided among the ranks."""
    p, flops = problem, problem.product_flops
    size = p.m * p.n * p.element_bytes
    wire = size * (p.ranks - 1) // p.ranks
    traffic = (Traffic("reduce_scatter", size, wire) if p.order == "RS_after"
               else Traffic("all_reduce", size, 2 * wire))
    return Work(flops // p.ranks, flops, (traffic,))


def unfit(problem: Problem) -> str | None:
    """Return why the inner extent, or the rows of the result, cannot be divided."""
    rows = {"m": problem.m} if problem.order == "RS_after" else {}
    return not_divided(problem.ranks, k=problem.k, **rows)


SPEC = PrimitiveSpec(
    name="tp_rowwise", meaning="matrix product + reduction: C = A W, columns of A on the ranks",
    orders=("RS_after", "AR_after"), work=work,
    unsharded=on_every_rank(lambda problem: problem.product_flops), unfit=unfit,
    inputs="hpcbench.kinds.primitive.run.inputs:Rowwise",
    layers=("attention_out", "mlp_down"), divides_layer=True)
