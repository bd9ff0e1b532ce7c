"""A training of 30 lines under fully_shard, to be recorded (docs/replay.md).

    mpirun -np 2 python -m hpcbench record -o rec -- python examples/traffic_fsdp.py
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, WIDTH = 5, 256
RANK = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK",
                                                "SLURM_PROCID") if name in os.environ), 0)
SIZE = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE",
                                                "SLURM_NTASKS") if name in os.environ), 1)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", sys.argv[1] if len(sys.argv) > 1 else "29555")

dist.init_process_group("gloo", rank=RANK, world_size=SIZE)
torch.manual_seed(0)
model = fully_shard(torch.nn.Linear(WIDTH, WIDTH), mesh=init_device_mesh("cpu", (SIZE,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
