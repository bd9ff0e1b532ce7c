"""What this package offers; imported where plans are made and results read, so without torch."""

from __future__ import annotations

from hpcbench.plugins import (
    ImplementationSpec,
    PrimitiveSpec,
    Problem,
    Traffic,
    Values,
    Work,
    not_divided,
)


def work(problem: Problem) -> Work:
    """Return 2 m n k flops, divided among the ranks, and the all-gather of the weight."""
    flops = 2 * problem.m * problem.n * problem.k
    size = problem.k * problem.n * problem.element_bytes
    wire = size * (problem.ranks - 1) // problem.ranks
    return Work(flops // problem.ranks, flops, (Traffic("all_gather", size, wire),))


def unsharded(problem: Problem) -> Work:
    """Return the work where each rank multiplies all rows."""
    flops = 2 * problem.m * problem.n * problem.k
    return Work(flops, flops * problem.ranks, ())


def unfit(problem: Problem) -> str | None:
    """Return why the rows of X or of W cannot be divided."""
    return not_divided(problem.ranks, m=problem.m, k=problem.k)


FSDP_FORWARD = PrimitiveSpec(
    name="fsdp_forward", meaning="all-gather of the weight + matrix product: Y = X W",
    orders=("AG_before",), work=work, unsharded=unsharded, unfit=unfit,
    inputs="hpcbench_example.fsdp_forward:Forward",
    layers=("attention_qkv", "attention_out", "mlp_up", "mlp_down"))

SPECS = [
    FSDP_FORWARD,
    ImplementationSpec(
        name="torch", meaning="all_gather_into_tensor, then torch.matmul",
        runners={"fsdp_forward": "hpcbench_example.fsdp_forward:Gathered"}),
    ImplementationSpec(
        name="broadcasts", meaning="each rank broadcasts its rows; a product as each block arrives",
        runners={"tp_columnwise": "hpcbench_example.broadcasts:Columnwise"},
        absent={"tp_rowwise": "partial sums must be added, which a broadcast does not do"},
        orders=frozenset({("tp_columnwise", "AG_before")}),
        options={"ahead": Values(True, (True, False))}, calls=("broadcast",), overlaps=True),
]
