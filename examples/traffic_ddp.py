"""A training of 30 lines whose communication is recorded, imported and replayed (docs/replay.md).

    mpirun -np 2 python -m hpcbench record -o rec -- python examples/traffic_ddp.py
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH = 5, 256
RANK = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK",
                                                "SLURM_PROCID") if name in os.environ), 0)
SIZE = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE",
                                                "SLURM_NTASKS") if name in os.environ), 1)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", sys.argv[1] if len(sys.argv) > 1 else "29555")

dist.init_process_group("gloo", rank=RANK, world_size=SIZE)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
