"""An all-reduce of one's own, a ring of sends and receives, beside torch's.

    mpirun -np 4 python -m hpcbench run examples/ring_all_reduce.py
"""

import torch
import torch.distributed as dist

import hpcbench

SIZES = [16_384, 1_048_576]


@hpcbench.benchmark(elements=SIZES, compare="sum over ranks", baseline=True)
def torch_all_reduce(ctx, elements):
    mine, total = ctx.rand(elements), ctx.empty(elements)

    def step():
        dist.all_reduce(total, group=ctx.group)

    return hpcbench.Case(step, prepare=lambda: total.copy_(mine), check=same_sum(ctx, mine, total),
                         bytes=total.nbytes, collective="all_reduce")


@hpcbench.benchmark(elements=SIZES, compare="sum over ranks")
def ring(ctx, elements):
    ranks, mine, total = ctx.world_size, ctx.rand(elements), ctx.empty(elements)
    parts = total.chunk(ranks)
    received = [torch.empty_like(part) for part in parts]
    to, source = (ctx.global_rank((ctx.rank + step) % ranks) for step in (1, -1))

    def exchange(sent, into):
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, sent, to, ctx.group),
            dist.P2POp(dist.irecv, into, source, ctx.group)])
        for work in works:
            work.wait()

    def step():
        for turn in range(ranks - 1):  # reduce-scatter: a part grows by one rank's a turn
            part = (ctx.rank - turn - 1) % ranks
            exchange(parts[(ctx.rank - turn) % ranks], received[part])
            parts[part].add_(received[part])
        for turn in range(ranks - 1):  # all-gather: the sums go round
            exchange(parts[(ctx.rank - turn + 1) % ranks], parts[(ctx.rank - turn) % ranks])

    return hpcbench.Case(step, prepare=lambda: total.copy_(mine), check=same_sum(ctx, mine, total),
                         bytes=total.nbytes, collective="all_reduce")


def same_sum(ctx, mine, total):
    """Return a check that all ranks make together."""
    expected = mine.clone()
    dist.all_reduce(expected, group=ctx.group)
    return lambda: int((~torch.isclose(total, expected)).sum())
