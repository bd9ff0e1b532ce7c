#!/usr/bin/env bash
# torch 2.13.0, backend gloo: a reduce_scatter sends as many bytes as an all_reduce of its whole
# input, twice what a ring needs. Its bus bandwidth by the usual factor (n-1)/n is therefore half of
# what the wire carried, and a plan that counts (n-1)/n bytes is off by two.
#
# Measured by the kernel's counter of the loopback interface, 2 ranks, 64 MiB, 4 calls each. Bytes
# of both ranks as a multiple of the 64 MiB, seen: all_reduce 2.00, reduce_scatter 2.01,
# all_gather 1.01; a ring sends 2, 1 and 1. Nothing else may use loopback much meanwhile.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
cat > "$folder/bytes_sent.py" <<'PYTHON'
import os
import sys
import warnings

import torch
import torch.distributed as dist

CALLS, ELEMENTS = 4, 2**24
EXPECTED = {"all_reduce": 2, "reduce_scatter": 2, "all_gather": 1}


def sent():
    with open("/sys/class/net/lo/statistics/tx_bytes") as file:
        return int(file.read())


def one_rank(rank, store):
    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    whole, part = torch.ones(ELEMENTS), torch.empty(ELEMENTS // 2)
    calls = {"all_reduce": lambda: dist.all_reduce(whole),
             "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
             "all_gather": lambda: dist.all_gather_into_tensor(whole, part)}
    differ = []
    for name, call in calls.items():
        call()
        dist.barrier()
        before = sent()
        for _ in range(CALLS):
            call()
        dist.barrier()
        share = (sent() - before) / CALLS / (4 * ELEMENTS)
        dist.barrier()
        if rank == 0:
            print(f"{name}: {share:.2f} times 64 MiB on the wire", flush=True)
            differ += [name] if abs(share - EXPECTED[name]) > 0.2 else []
    dist.destroy_process_group()
    assert not differ, f"changed: {differ}"


if __name__ == "__main__":
    print("torch", torch.__version__)
    torch.multiprocessing.spawn(one_rank, (sys.argv[1],), 2)
PYTHON
"$folder/venv/bin/python" "$folder/bytes_sent.py" "$folder/store"
