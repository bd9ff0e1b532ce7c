#!/usr/bin/env bash
# MPICH 5.0.2: an all_reduce of MiB sizes is halving and doubling, on ranks beyond a power of two folded: these
# send all they have to another rank first. What the next rounds send to that rank comes at the same time and
# shares its link, so 3 ranks take 3.5 times one message where 2 take 1 and 4 take 1.5: a job is 2.5 times as
# slow as MPICH's own ring (MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring), which takes 1.33. As root: makes network
# namespaces of its own, with links of 200 Mbit/s.
set -eu
if [ "${1-}" = host ]; then # what mpirun calls in place of ssh: options, host, command
    shift
    while [ "${1#-}" != "$1" ]; do shift; done
    exec ip netns exec "$1" unshare --uts --ipc sh -c "hostname of${1##*.}; mount -t tmpfs tmpfs /dev/shm; ${*:2}"
fi
if [ "${1-}" != inside ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q mpich==5.0.2 mpi4py==4.1.2 numpy==2.3.5
    unshare --mount --net "$(realpath "$0")" inside "$folder"
    exit
fi
folder=$2
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link add switch type bridge
ip link set switch up
for i in 1 2 3 4; do
    ip netns add "10.78.0.$i"
    ip link add "to$i" type veth peer name eth0 netns "10.78.0.$i"
    ip link set "to$i" master switch up
    ip -n "10.78.0.$i" address add "10.78.0.$i/24" dev eth0
    ip -n "10.78.0.$i" link set eth0 up
    ip -n "10.78.0.$i" link set lo up
    ip netns exec "10.78.0.$i" tc qdisc add dev eth0 root tbf rate 200mbit burst 70kb latency 50ms
    tc qdisc add dev "to$i" root tbf rate 200mbit burst 70kb latency 50ms
done
cat > "$folder/timed.py" <<'PYTHON'
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

comm, expected = MPI.COMM_WORLD, float(sys.argv[1])
given = np.ones(2**20, np.float32)  # 4 MiB: 168 ms over one link
summed = np.empty_like(given)
took = []
for _ in range(6):
    comm.Barrier()
    begin = time.perf_counter()
    comm.Allreduce(given, summed)
    took.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
messages = statistics.median(took[1:]) / (given.nbytes * 8 / 200e6)
if comm.rank == 0:
    print(f"{comm.size} ranks: {messages:.2f} times one message; expected {expected}", flush=True)
    assert abs(messages / expected - 1) < 0.2, "changed"
PYTHON
printf '#!/bin/sh\nexec "%s" host "$@"\n' "$0" > "$folder/agent"
chmod +x "$folder/agent"
timed() { # ranks, expected, options of mpirun
    hosts=$(seq -s, -f 10.78.0.%g "$1")
    "$folder/agent" 10.78.0.1 "$folder/venv/bin/mpirun" -launcher rsh -launcher-exec "$folder/agent" -ppn 1 \
        -hosts "$hosts" -np "$1" "${@:3}" "$folder/venv/bin/python" "$folder/timed.py" "$2"
}
timed 2 1
timed 3 3.5
timed 4 1.5
timed 3 1.33 -genv MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM ring
