"""The time of a product of matrices on each rank, and the rate that follows from it.

    mpirun -np 2 python -m hpcbench run examples/plain_timing.py
"""

import torch

import hpcbench


@hpcbench.benchmark(size=[256, 512], dtype=["fp32", "bf16"])
def product(ctx, size):
    left, right = ctx.rand(size, size), ctx.rand(size, size)
    result = ctx.empty(size, size)

    def step():
        torch.mm(left, right, out=result)

    return hpcbench.Case(step, flops=2 * size**3)
