"""tp_columnwise: C = A W, rows of A on the ranks; all-gather, and a matrix product.

A is (m, k), W is (k, n), C is (m, n). A rank has rows of A.

- ``AG_before``: A is gathered, each rank multiplies all of A by its columns of W and keeps its
  columns of C: Megatron's column-parallel layer under sequence parallelism. With ``weight``
  ``replicated`` each rank has all of W and computes all of C: what DDLB calls AG_before.
- ``AG_after``: each rank multiplies its rows of A by all of W, and C is gathered.
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
    """Return 2 m n k flops over all ranks, d times as many where all ranks compute all of C."""
    p, flops = problem, problem.product_flops
    if p.order == "AG_before":
        every = p.options["weight"] == "replicated"
        flops_each = flops if every else flops // p.ranks
        return Work(flops_each, flops_each * p.ranks, (_gather(p, p.k),))
    return Work(flops // p.ranks, flops, (_gather(p, p.n),))


def unfit(problem: Problem) -> str | None:
    """Return why rows or columns cannot be divided."""
    columns = problem.order == "AG_before" and problem.options["weight"] == "sharded"
    return not_divided(problem.ranks, m=problem.m, **({"n": problem.n} if columns else {}))


def _gather(problem: Problem, width: int) -> Traffic:
    size = problem.m * width * problem.element_bytes
    return Traffic("all_gather", size, size * (problem.ranks - 1) // problem.ranks)


SPEC = PrimitiveSpec(
    name="tp_columnwise", meaning="all-gather + matrix product: C = A W, rows of A on the ranks",
    orders=("AG_before", "AG_after"), work=work,
    unsharded=on_every_rank(lambda problem: problem.product_flops), unfit=unfit,
    inputs="hpcbench.kinds.primitive.run.inputs:Columnwise",
    options={"weight": Values("sharded", ("sharded", "replicated"))},
    layers=("attention_qkv", "mlp_up"), divides_layer=True,
    decided={"AG_after": {"weight": "replicated"}})
