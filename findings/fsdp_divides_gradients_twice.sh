#!/usr/bin/env bash
# torch 2.13.0, fully_shard (FSDP2): set_gradient_divide_factor, by which expert parallelism divides
# gradients by more ranks than share a parameter, has two surprises outside of NCCL.
# - gloo: the step raises "Cannot use ReduceOp.PREMUL_SUM with Gloo", as torch asks for a sum of
#   multiples unless set_force_sum_reduction_for_comms(True) is called, too.
# - On a mesh of one rank (each rank has experts of its own) both settings together divide by the
#   factor twice: silently, gradients are smaller by the factor. Seen: 1 became 0.0625 instead of 0.25.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
cat > "$folder/factors.py" <<'PYTHON'
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FACTOR = 4.0


def gradient(mesh, *, force_sum):
    layer = torch.nn.Linear(2, 2, bias=False)
    fully_shard(layer, mesh=mesh)
    layer.set_gradient_divide_factor(FACTOR)
    layer.set_force_sum_reduction_for_comms(force_sum)
    layer(torch.ones(1, 2)).sum().backward()
    return float(layer.weight.grad.to_local().flatten()[0])


def one_rank(rank, store):
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("both", "alone"))
    found = {"both ranks, forced sum": gradient(mesh["both"], force_sum=True) / 2,
             "one rank": gradient(mesh["alone"], force_sum=False),
             "one rank, forced sum": gradient(mesh["alone"], force_sum=True)}
    try:
        gradient(mesh["both"], force_sum=False)
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    if rank == 0:
        for name, share in found.items():
            print(f"{name}: a gradient of 1 becomes {share}", flush=True)
        print(f"both ranks: {refused}", flush=True)
        assert list(found.values()) == [1 / FACTOR, 1 / FACTOR, 1 / FACTOR**2], f"changed: {found}"
        assert "PREMUL_SUM" in refused, f"changed: {refused}"


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(one_rank, (sys.argv[1],), 2)
PYTHON
"$folder/venv/bin/python" "$folder/factors.py" "$folder/store"
