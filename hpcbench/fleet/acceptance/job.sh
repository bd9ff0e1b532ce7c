#!/bin/bash
# The acceptance test of this folder. It goes on where it stopped, whenever it is started again.
#
#     bash job.sh                        every step on one node
#     sbatch --nodes=8 job.sh            every step on 8 nodes
#     sbatch --nodelist=n7 job.sh node   one step on one node
#
#   RANKS_A_NODE   ranks of a node; default: @RANKS@
#   RANKS          all ranks; default: those of Slurm's allocation, else RANKS_A_NODE
#   SOAK           how long to soak; default: 24h
#
#SBATCH --job-name=acceptance
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=@RANKS@
#SBATCH --exclusive
#SBATCH --time=2-00:00:00
#SBATCH --output=acceptance-%j.out
set -u
cd "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")}" || exit 2
a_node=${RANKS_A_NODE:-@RANKS@}
ranks=${RANKS:-${SLURM_NTASKS:-$a_node}}
worst=0

# Start a step on so many ranks, and note its verdict: a finding outweighs what is incomplete.
step() {
    local name=$1 n=$2 code verdict
    shift 2
    echo "== $name: mpirun -np $n python -m hpcbench $*"
    mpirun -np "$n" python -m hpcbench "$@"
    code=$?
    case $code in 0) verdict=PASS ;; 3) verdict=INCOMPLETE ;; *) verdict=FAIL ;; esac
    echo "$(date +%Y-%m-%dT%H:%M:%S%z) $name $n ranks: $verdict ($code)" | tee -a verdicts.txt
    case $worst,$code in *,0 | 1,* ) ;; 0,* | 3,* | *,1) worst=$code ;; esac
}

for name in "${@:-node pairs all training soak}"; do
    for one in $name; do
        case $one in
            node) step node "$a_node" run node.yaml --resume results/node ;;
            pairs | all | training) step "$one" "$ranks" run "$one.yaml" --resume "results/$one" ;;
            soak) step soak "$ranks" soak soak.yaml --for "${SOAK:-24h}" --resume results/soak ;;
            *) echo "job.sh: $one is no step: node pairs all training soak" >&2; exit 2 ;;
        esac
    done
done
exit "$worst"
