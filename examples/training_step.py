"""A training step of a model of one's own, with and without DistributedDataParallel.

    mpirun -np 2 python -m hpcbench run examples/training_step.py
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcbench


@hpcbench.benchmark(width=[256], batch=[8, 32], parallel=["none", "ddp"],
                    settings="parallel")
def step_of(ctx, width, batch, parallel):
    torch.manual_seed(0)  # the same weights on all ranks
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    model.to(ctx.device, ctx.dtype)
    if parallel == "ddp":
        model = DistributedDataParallel(model, process_group=ctx.group)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = ctx.rand(batch, width), ctx.rand(batch, width)
    losses = []

    def step():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses[:] = [loss.detach()]

    weights = sum(parameter.numel() for parameter in model.parameters())
    return hpcbench.Case(step, check=lambda: bool(torch.isfinite(losses[0])),
                         flops=6 * weights * batch)
