"""A pipeline of one linear layer a rank, to be recorded (docs/replay.md).

    mpirun -np 2 python -m hpcbench record -o rec -- python examples/traffic_pipeline.py
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

STEPS, WIDTH, PARTS = 5, 256, 4
RANK = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK",
                                                "SLURM_PROCID") if name in os.environ), 0)
SIZE = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE",
                                                "SLURM_NTASKS") if name in os.environ), 1)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", sys.argv[1] if len(sys.argv) > 1 else "29555")

dist.init_process_group("gloo", rank=RANK, world_size=SIZE)
torch.manual_seed(0)
layer = torch.nn.Linear(WIDTH, WIDTH)
stage = PipelineStage(layer, RANK, SIZE, torch.device("cpu"))
schedule = ScheduleGPipe(stage, PARTS, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
inputs, targets = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
for _ in range(STEPS):
    optimizer.zero_grad()
    schedule.step(*([inputs] if RANK == 0 else []),
                  target=targets if RANK == SIZE - 1 else None)
    optimizer.step()
dist.destroy_process_group()
