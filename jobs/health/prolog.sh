#!/bin/sh
# Slurm's Prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/hpcbench.sh). A code other than 0 drains the
# node and requeues the job, so only evidence against this node has one. It calls no scontrol: a
# prolog that waits for slurmctld can block the start of all jobs.
exec "${HPCBENCH_HEALTH_SCRIPTS:-/usr/local/lib/hpcbench/health}/check_stored.sh" slurm
