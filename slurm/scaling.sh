#!/usr/bin/env bash
# bash slurm/scaling.sh FILE.sbatch NODES...      such as: slurm/scaling.sh slurm/cpu.sbatch 1 2 4 8
#
# Submits the same job file for each number of nodes, one job after another (so that they do not
# share the network), then one that puts the results together:
#     results/scaling-TIME/scaling.csv and scaling.png     time and bandwidth against ranks
# Prints the numbers of the jobs. SCALING_ARGUMENTS are given to each run: SCALING_ARGUMENTS="--launches 3"
set -eu
[ -f slurm/scaling.py ] || { echo "slurm/scaling.sh: run it in the checkout, which has slurm/scaling.py" >&2; exit 2; }
[ $# -ge 2 ] && [ -r "$1" ] || { echo "slurm/scaling.sh: give a job file that can be read and numbers of nodes, such as: slurm/scaling.sh slurm/cpu.sbatch 1 2 4" >&2; exit 2; }
for nodes in "${@:2}"; do
    [[ $nodes =~ ^[1-9][0-9]*$ ]] || { echo "slurm/scaling.sh: '$nodes' is no number of nodes: give 1, 2, 4 and so on" >&2; exit 2; }
done
file=$1
shift
name=scaling-$(date +%Y%m%d-%H%M%S)
after=
for nodes in "$@"; do
    # afterany: a job that ended with findings or at its time limit does not hold up the others
    after=$(sbatch --parsable --nodes="$nodes" --job-name="$name-$nodes" \
        ${after:+--dependency="afterany:$after"} "$file" ${SCALING_ARGUMENTS:-})
    echo "$after"
done
options=$(sed -n 's/^#SBATCH \(--account=.*\|--partition=.*\)/\1/p' "$file")
# shellcheck disable=SC2086  (two options)
sbatch --parsable $options --ntasks=1 --time=00:10:00 --job-name="$name" --output=%x-%j.out \
    --dependency="afterany:$after" \
    --wrap "python slurm/scaling.py results/$name results/$name-*"
