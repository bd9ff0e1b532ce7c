#!/usr/bin/env bash
# torch 2.13.0, DTensor: the rules of operations that it has worked out stay in caches of the process,
# with the mesh of each. A mesh holds its process group, so that group's sockets stay open after
# destroy_process_group(): for each new shape of a DTensor in each world that was set up anew, 2 a rank
# on gloo with 2 ranks. A world that only calls collectives leaves none; neither does one whose shapes
# and mesh are as before. A long-lived process that sets up groups again and again, as a benchmark or an
# elastic job does, comes to its limit of open files. Seen: 2, 4, 6, 8, 10, 12 after six worlds, else 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
cat > "$folder/sockets.py" <<'PYTHON'
import gc
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

WORLDS = 6


def sockets():
    gc.collect()
    links = []
    for one in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{one}"))
        except OSError:  # of the listing itself
            pass
    return sum(link.startswith("socket:") for link in links)


def world(rank, store, rows):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    if rows:
        distribute_tensor(torch.ones(rows, 4), mesh, [Shard(0)]) * 2
    else:
        dist.all_reduce(torch.ones(4), group=mesh.get_group())
    del mesh
    dist.destroy_process_group()


def one_rank(rank, folder):
    shapes = {"collectives": [0] * WORLDS, "one shape": [4] * WORLDS,
              "new shapes": [6 + 2 * turn for turn in range(WORLDS)]}
    found = {}
    for name, rows in shapes.items():
        before, found[name] = sockets(), []
        for turn, extent in enumerate(rows):
            world(rank, f"{folder}/{name}-{turn}", extent)
            found[name].append(sockets() - before)
        if rank == 0:
            print(f"{name}: sockets open after each world: {found[name]}", flush=True)
    assert set(found["collectives"]) == {0}, f"changed: {found}"
    assert set(found["one shape"]) == {2}, f"changed: {found}"
    assert found["new shapes"] == [2 * (turn + 1) for turn in range(WORLDS)], f"changed: {found}"


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(one_rank, (sys.argv[1],), 2)
PYTHON
"$folder/venv/bin/python" "$folder/sockets.py" "$folder"
