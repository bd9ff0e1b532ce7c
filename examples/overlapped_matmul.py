"""An all-gather that is hidden behind the product, beside torch's and chunked_pipeline.

    mpirun -np 4 python -m hpcbench run examples/overlapped_matmul.py

Each rank has rows of A and columns of W, and ends with its columns of C = A W: the primitive
tp_columnwise. hpcbench gives the operands, and checks the output.
"""

import torch
import torch.distributed as dist

import hpcbench


@hpcbench.benchmark(compare="tp_columnwise", baseline=["torch", "chunked_pipeline"],
                    order="AG_before", m=[512, 1024], n=1024, k=1024, chunks=[2, 4])
def overlapped(ctx, chunks):
    rows, weight = ctx.problem.rows, ctx.problem.weight
    parts = rows.chunk(chunks)
    gathered = [ctx.empty(ctx.world_size, len(part), part.shape[1]) for part in parts]
    output = ctx.empty(ctx.world_size, len(rows), weight.shape[1])
    columns = output.split([len(part) for part in parts], dim=1)  # of C, those of each chunk

    def step():
        works = [dist.all_gather_into_tensor(whole.flatten(0, 1), part, group=ctx.group,
                                             async_op=True)
                 for whole, part in zip(gathered, parts, strict=True)]
        for work, whole, into in zip(works, gathered, columns, strict=True):
            work.wait()
            for of_rank, result in zip(whole, into, strict=True):
                torch.mm(of_rank, weight, out=result)

    return hpcbench.Case(step, output=output.flatten(0, 1))
