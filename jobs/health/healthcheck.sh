#!/bin/sh
# Slurm's HealthCheckProgram, which slurmd ends after 60 s and whose code it does not look at: the
# script drains the node itself, with one reason that begins with HPCBENCH_CHECK, and takes no other
# reason away.
said=$("${HPCBENCH_HEALTH_SCRIPTS:-/usr/local/lib/hpcbench/health}/check_stored.sh" slurm) && exit 0
node=${SLURMD_NODENAME:-$(hostname -s)}
reason=$(printf '%s\n' "$said" | sed -n '1p')
timeout 10 sinfo -h -n "$node" -o %E 2>/dev/null | grep -qv '^none$' ||
    timeout 10 scontrol update "nodename=$node" state=drain "reason=$reason"
