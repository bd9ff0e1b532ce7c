"""Two ways to add up a vector over all ranks, side by side.

    mpirun -np 2 python -m hpcbench run examples/my_ops.py
"""

import torch
import torch.distributed as dist

import hpcbench


@hpcbench.benchmark(elements=[1024, 262144], dtype=["fp32"], compare="sum", baseline=True)
def all_reduce(ctx, elements):
    mine, total = ctx.rand(elements), ctx.empty(elements)

    def step():
        total.copy_(mine)
        dist.all_reduce(total, group=ctx.group)

    return hpcbench.Case(step, bytes=total.nbytes, collective="all_reduce", output=total)


@hpcbench.benchmark(elements=[1024, 262144], chunks=[2, 4], dtype=["fp32"], compare="sum")
def in_chunks(ctx, elements, chunks):
    mine, total = ctx.rand(elements), ctx.empty(elements)

    def step():
        total.copy_(mine)
        works = [dist.all_reduce(part, group=ctx.group, async_op=True)
                 for part in total.chunk(chunks)]
        for work in works:
            work.wait()

    def check():
        expected = mine.clone()
        dist.all_reduce(expected, group=ctx.group)
        return torch.allclose(total, expected)

    return hpcbench.Case(step, check=check, bytes=total.nbytes, collective="all_reduce")
