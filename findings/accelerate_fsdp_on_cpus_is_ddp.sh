#!/usr/bin/env bash
# accelerate 1.15.0, ranks on CPUs (gloo): Accelerator(cpu=True, fsdp_plugin=...) with FSDP2 trains by
# DistributedDataParallel, without an error or a warning: every rank keeps all parameters, gradients and
# states. Its state takes the plug-in for GPUs and NPUs only, the type of CPUs (MULTI_CPU) is not among them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q accelerate==1.15.0 torch==2.13.0 numpy
cat > "$folder/prepared.py" <<'PYTHON'
import os
import sys
import warnings

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin


def one_rank(rank, store):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                      OMP_NUM_THREADS="1")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        model = torch.nn.Linear(4, 4)
        model, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    said = [str(one.message) for one in caught if "fsdp" in str(one.message).lower()]
    if rank == 0:
        print(f"{accelerator.distributed_type}: {type(model).__name__}, warnings of FSDP: {said}", flush=True)
        assert isinstance(model, torch.nn.parallel.DistributedDataParallel), "changed"
        assert not said, "changed"


if __name__ == "__main__":
    torch.multiprocessing.spawn(one_rank, (sys.argv[1],), 2)
PYTHON
"$folder/venv/bin/python" "$folder/prepared.py" "$folder/store"
