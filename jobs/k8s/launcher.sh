#!/bin/bash
# launcher.sh RANKS ARGUMENTS OF run
#
# What the launcher pod of an MPIJob runs: it waits until every worker answers, then
#     mpirun -n RANKS python -m hpcbench run ARGUMENTS
# puts the ranks there, and its exit code is the pod's. It is process 1 of its container.
#
# HPCBENCH_START_LIMIT   seconds that the workers may take to answer
# HPCBENCH_TIME_LIMIT    seconds after which the running case is finished and what there is reported;
#                        if that takes more than 10 minutes and a quarter of them, mpirun is killed
# NCCL_*, UCX_* and so on are passed on to the ranks: a session of ssh has nothing of its container's
# environment, so here is the place to set them.
set -u
ranks=$1
shift
hostfile=/etc/mpi/hostfile # of the operator
forwarded='^(NCCL|UCX|UCC|GLOO|TORCH|OMP|CUDA|HPCBENCH)_'

fail() {
    echo "hpcbench launcher: $*" >&2
    exit 2
}

# Wait until the host answers; fail at the limit, with what ssh said last.
wait_for() {
    local told
    until told=$(ssh -o ConnectTimeout=5 "$1" true 2>&1); do
        [ "$SECONDS" -lt "${HPCBENCH_START_LIMIT:-1800}" ] ||
            fail "worker $1 did not answer in $SECONDS s: ${told##*$'\n'}"
        sleep 1
    done
}

# Set $launcher to mpirun and its options; fail if the operator prepared the job for another MPI.
find_launcher() {
    local version name
    version=$(mpirun --version 2>&1) || fail "mpirun does not start: ${version%%$'\n'*}"
    case $version in
        *HYDRA*)
            [ -n "${HYDRA_HOST_FILE:-}" ] ||
                fail "the image has MPICH, the job is not mpiImplementation MPICH: HPCBENCH_MPI=mpich"
            launcher=(mpirun) ;; # its ranks get this whole environment
        *)
            [ -n "${OMPI_MCA_orte_default_hostfile:-}" ] ||
                fail "the image has Open MPI, the job is not mpiImplementation OpenMPI:" \
                    "HPCBENCH_MPI=openmpi"
            launcher=(mpirun --bind-to none) # hpcbench divides the cores of a node
            for name in $(compgen -e | grep -E "$forwarded"); do launcher+=(-x "$name"); done ;;
    esac
}

trap 'exit 143' TERM INT # process 1 would not end by them
find_launcher
cd || fail "no home folder" # there is one in every pod
echo "waiting for $(grep -c . $hostfile) workers"
while read -r host; do
    host=${host%% *}
    wait_for "${host%:*}" </dev/null
done <$hostfile
echo "${launcher[*]} -n $ranks python -m hpcbench run $*"
# timeout hands signals on to mpirun alone, not to the sessions of ssh that hold the ranks
limit=${HPCBENCH_TIME_LIMIT:-7200}
exec timeout --foreground --preserve-status --signal=USR1 --kill-after=$((600 + limit / 4)) \
    "$limit" "${launcher[@]}" -n "$ranks" "$(command -v python)" -m hpcbench run "$@"
