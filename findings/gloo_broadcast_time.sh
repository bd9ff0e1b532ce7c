#!/usr/bin/env bash
# torch 2.13.0, gloo: a broadcast goes down a binomial tree, but each rank sends to all its children at once,
# so that these share its link: where links are the limit, 8 ranks take 6 times one message (3 + 2 + 1), not
# the 3 of a binomial tree. For 2 to 6 ranks that is n - 1 messages, and cannot be told from the root sending
# to one after another. As root: makes network namespaces of its own, with links of 100 Mbit/s.
set -eu
if [ "${1-}" != inside ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q torch==2.13.0 numpy
    unshare --mount --net "$0" inside "$folder"
    exit
fi
folder=$2
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link add switch type bridge
ip link set switch up
for i in 0 1 2 3 4 5 6 7; do
    ip netns add "rank$i"
    ip link add "to$i" type veth peer name eth0 netns "rank$i"
    ip link set "to$i" master switch up
    ip -n "rank$i" address add "10.78.0.$((i + 1))/24" dev eth0
    ip -n "rank$i" link set eth0 up
    ip -n "rank$i" link set lo up
    ip netns exec "rank$i" tc qdisc add dev eth0 root tbf rate 100mbit burst 70kb latency 50ms
    tc qdisc add dev "to$i" root tbf rate 100mbit burst 70kb latency 50ms
done
cat > "$folder/timed.py" <<'PYTHON'
import datetime
import statistics
import sys
import time

import torch
import torch.distributed as dist

rank, ranks, port = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method=f"tcp://10.78.0.1:{port}", rank=rank, world_size=ranks,
                        timeout=datetime.timedelta(seconds=120))
tensor = torch.ones(2**20)  # 4 MiB: 336 ms over one link
took = []
for _ in range(4):
    dist.barrier()
    begin = time.monotonic()
    dist.broadcast(tensor, 0)
    took.append(torch.tensor(time.monotonic() - begin))
    dist.all_reduce(took[-1], dist.ReduceOp.MAX)
messages = statistics.median(map(float, took)) / (tensor.nbytes * 8 / 100e6)
if rank == 0:
    expected = {2: 1, 3: 2, 4: 3, 5: 4, 6: 5, 8: 6}[ranks]
    print(f"{ranks} ranks: a broadcast takes {messages:.2f} times one message; expected {expected}", flush=True)
    assert abs(messages - expected) < 0.5, "changed"
dist.destroy_process_group()
PYTHON
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0
for ranks in 2 4 6 8; do
    for rank in $(seq "$((ranks - 1))"); do
        ip netns exec "rank$rank" "$folder/venv/bin/python" "$folder/timed.py" "$rank" "$ranks" "$((29500 + ranks))" &
    done
    ip netns exec rank0 "$folder/venv/bin/python" "$folder/timed.py" 0 "$ranks" "$((29500 + ranks))"
    wait
done
