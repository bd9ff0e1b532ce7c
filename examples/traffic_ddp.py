"""A training of 30 lines whose communication is recorded, imported and replayed (docs/replay.md).

    mpirun -np 2 python -m hpcbench record -o rec -- python examples/traffic_ddp.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("port", nargs="?", default="29555")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--late-ms", type=float, default=0, help="what rank 0 sleeps in each step")
given = parser.parse_args()
WIDTH = 256
RANK = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK",
                                                "SLURM_PROCID") if name in os.environ), 0)
SIZE = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE",
                                                "SLURM_NTASKS") if name in os.environ), 1)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", given.port)

dist.init_process_group("gloo", rank=RANK, world_size=SIZE)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
began = time.perf_counter()
for _ in range(given.steps):
    optimizer.zero_grad()
    time.sleep(given.late_ms / 1e3 * (RANK == 0))
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
if RANK == 0:
    print(f"{given.steps} steps in {time.perf_counter() - began:.3f} s", flush=True)
del model  # it keeps the group, whose threads have to end before Python does
dist.destroy_process_group()
