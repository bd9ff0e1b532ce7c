"""dp_allreduce: the weight gradients of several layers, summed over all ranks' tokens.

Of each of ``layers`` layers G = D^T X: X is (m, k), the layer's inputs; D is (m, n), the gradients
of its outputs; G is (n, k). A rank has m / d rows of X and D. Every rank ends with all of G.

- ``AR_after``: all products, then the all-reduce. Implementations that overlap reduce the
  gradients of earlier layers (a bucket) under the product of later ones.
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


def _flops(problem: Problem) -> int:
    return problem.product_flops * int(problem.options["layers"])


def work(problem: Problem) -> Work:
    """Return 2 m n k flops a layer, divided among the ranks."""
    p, flops = problem, _flops(problem)
    size = p.n * p.k * p.element_bytes * int(p.options["layers"])
    return Work(flops // p.ranks, flops,
                (Traffic("all_reduce", size, 2 * size * (p.ranks - 1) // p.ranks),))


def unfit(problem: Problem) -> str | None:
    """Return why the tokens cannot be divided."""
    return not_divided(problem.ranks, m=problem.m)


SPEC = PrimitiveSpec(
    name="dp_allreduce", meaning="weight gradients of several layers + all-reduce: G = sum D^T X",
    orders=("AR_after",), work=work, unsharded=on_every_rank(_flops), unfit=unfit,
    inputs="hpcbench.kinds.primitive.run.inputs:Gradients",
    options={"layers": Values(4)},
    layers=("attention_qkv", "attention_out", "mlp_up", "mlp_down"))
