# Sourced by the *.sbatch files beside it, inside a Slurm job; not run by itself.
#
#   run_hpcbench CONFIG [ARGUMENTS OF run]
#
# starts `python -m hpcbench run CONFIG ARGUMENTS` on every task of the job, with python, mpirun
# and MPI of the environment that was active when the job was submitted, and ends with its exit
# code. ARGUMENTS come last, so they win over the file; a first one that is no option replaces CONFIG.
#
# HPCBENCH_LAUNCHER   mpirun (default) or srun, which needs a Slurm with this MPI's plug-in

fail() {
    echo "hpcbench job: $*" >&2
    exit 2
}

# Set $mpi to mpich or openmpi: whose mpirun comes first on PATH.
find_mpi() {
    local version
    command -v mpirun >/dev/null ||
        fail "no mpirun on PATH: activate the environment, or load the MPI's module, before sbatch"
    version=$(mpirun --version 2>&1)
    case $version in
        *HYDRA*) mpi=mpich ;;
        *"Open MPI"* | *OpenRTE* | *"PRTE"*) mpi=openmpi ;;
        *) fail "$(command -v mpirun) is neither MPICH's nor Open MPI's: ${version%%$'\n'*}" ;;
    esac
}

# Set $launcher to the words before python.
find_launcher() {
    local plugin
    find_mpi
    case ${HPCBENCH_LAUNCHER:-mpirun} in
        mpirun)
            launcher=(mpirun -np "$SLURM_NTASKS")
            # a rank has several threads and its own GPU: hpcbench divides the cores of a node
            if [ "$mpi" = openmpi ]; then launcher+=(--bind-to none); fi ;;
        srun)
            case $mpi in mpich) plugin=pmi2 ;; *) plugin=pmix ;; esac
            srun --mpi=list 2>&1 | grep -qw "$plugin" ||
                fail "this Slurm has no --mpi=$plugin, which $mpi needs: use HPCBENCH_LAUNCHER=mpirun"
            # --wait: the others do not stay for longer when a rank is gone; srun does not take
            # --cpus-per-task over from sbatch
            launcher=(srun "--mpi=$plugin" --wait=60 "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}") ;;
        *) fail "HPCBENCH_LAUNCHER=$HPCBENCH_LAUNCHER is unknown: mpirun or srun" ;;
    esac
}

# Send signal $1 on to the ranks, by way of their launcher.
pass_on() {
    interrupted=yes
    asked=$1
    kill -s "$1" "$launcher_pid" 2>/dev/null
}

# Put the job back into the queue if the time limit's signal stopped its run, it has got further,
# and something is left of it.
requeue() {
    if [ "$asked" = USR1 ] && python -m hpcbench.reduce.history "$folder"; then
        echo "stopped before the time limit: goes on as soon as job $SLURM_JOB_ID starts again"
        scontrol requeue "$SLURM_JOB_ID"
    fi
}

run_hpcbench() {
    local config=$1 name folder word before= code launcher launcher_pid interrupted asked= mpi
    shift
    case ${1:--} in -*) ;; *) config=$1 && shift ;; esac
    find_launcher
    name=$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
    name+=${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
    # the same folder whenever the job starts: one that was put back into the queue goes on there
    folder=results/$name
    for word; do # or that of an older job, which --resume names
        if [ "$before" = --resume ]; then folder=$word; fi
        case $word in --resume=*) folder=${word#*=} ;; esac
        before=$word
    done
    if [ "$folder" = "results/$name" ]; then set -- --resume "$folder" "$@"; fi
    echo "${launcher[*]} python -m hpcbench run $config $*"
    "${launcher[@]}" python -m hpcbench run "$config" "$@" &
    launcher_pid=$!
    trap 'pass_on USR1' USR1 # of #SBATCH --signal: finish the case, seal, report
    trap 'interrupted=yes; asked=TERM' TERM # of scancel, which has sent it to the ranks, too: seal at once
    while
        interrupted=
        wait "$launcher_pid"
        code=$?
        [ "$interrupted" ] # by a signal: then that was not the launcher's exit code
    do :; done
    if [ -d "$folder" ]; then
        echo "exit code $code, results in $(realpath "$folder")"
    else
        echo "exit code $code, no results"
    fi
    requeue
    return "$code"
}
