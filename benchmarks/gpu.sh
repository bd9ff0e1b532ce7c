#!/usr/bin/env bash
# bash benchmarks/gpu.sh [MINUTES] [--carry DIR | --no-setup] [-o FOLDER] [--again STEP] [--steps FILE]
# bash benchmarks/gpu.sh --fill DIR [PYTHON [MACHINE]]
#
# What there is to show on the first machine with a GPU: sets hpcbench up in .venv (once), then runs
# the steps of benchmarks/gpu/steps.yaml in order of value, for at most MINUTES (60): tests/gpu,
# NCCL's collectives, primitives, training steps, faults. On one GPU it begins with what one GPU
# proves, and skips what needs two. Each failure costs its own step. The folder results/gpu-HOSTNAME
# has the results, and verdicts.md and verdicts.json with a verdict per goal. In the end it prints
# goal, figures and verdict, and packs what there is to send back, without secrets, names of hosts,
# users and jobs, addresses and paths: to-send.tar.gz in that folder.
# Run it again to go on where it stopped.
#
# Exit code: 0 every goal that this machine can show is met; 1 some are missed or failed; 2 bad usage,
# a set-up that failed or lacks something, or a folder in use; 3 the time was over, or it was
# interrupted; 5 no GPU that torch can use.
#
# --carry DIR       without a network: take the wheels of DIR, and torch and whatever else this
#                   machine's python3 has; the virtual environment is .venv-carry
# --fill DIR        where there is a network: fill DIR with the wheels that --carry takes, without
#                   torch, 70 MB. PYTHON is the version of the other machine's Python, such as 3.12,
#                   and MACHINE what its `uname -m` prints; without them, those of this machine
# --no-setup        take the Python of .venv, else python3 on PATH, as they are: no network
# HPCBENCH_PYTHON   the python3 that has torch; with --no-setup the Python to use as it is; else as for
#                   jobs/local.sh, as is HPCBENCH_VENV
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../jobs/environment.sh"

# Print one line that says what is wrong and what to do, and end with a code.
stop() {
    local code=$1
    shift
    echo "benchmarks/gpu.sh: $*" >&2
    exit "$code"
}

# Print what pip is to install beside torch, a line each, from setup.cfg.
carried() {
    "$python" - "$hpcbench_root/setup.cfg" <<'PYTHON'
import configparser, re, sys
config = configparser.ConfigParser()
config.read(sys.argv[1])
extras = config["options.extras_require"]
lines = "\n".join([config["options"]["install_requires"], extras["run"], extras["mpich"]]).split("\n")
tests = [line for line in extras["test"].split("\n") if re.match("pytest>|pytest-timeout|hypothesis", line)]
print("\n".join(line for line in lines + tests if line and not re.match(r"torch\b", line)))
PYTHON
}

# Fill folder $1 with wheels for Python $2 on machine $3.
fill() {
    local folder=$1 version=${2:-${python_identity%% *}} machine=${3:-$(uname -m)} wanted=() platforms=()
    local pinned tag
    [[ $version =~ ^3\.(1[0-9])$ ]] || stop 2 "--fill: PYTHON must be 3.10 or newer, such as 3.12: $version"
    mkdir -p "$folder" 2>/dev/null || stop 2 "--fill: $folder cannot be made"
    mapfile -t wanted < <(carried)
    for tag in manylinux_2_{28,27,26,24,17,12,5}_ manylinux2014_ manylinux2010_ manylinux1_; do
        platforms+=(--platform "$tag$machine")
    done
    # pip judges markers by the Python that it runs in, so the lines for the other one are chosen here
    pinned='/; *python_version >= "3.11"/s/;.*//; /; *python_version < "3.11"/d'
    if [ "$version" = 3.10 ]; then
        pinned='/; *python_version >= "3.11"/d; /; *python_version < "3.11"/s/;.*//'
        wanted+=(exceptiongroup tomli)
    fi
    echo "benchmarks/gpu.sh: filling $folder for Python $version on $machine"
    sed -e "$pinned" "$hpcbench_root/constraints.txt" >"$folder/constraints.txt" &&
        env -u PIP_CONSTRAINT "$python" -m pip --disable-pip-version-check download --quiet \
            --only-binary :all: --python-version "$version" --implementation cp "${platforms[@]}" \
            --constraint "$folder/constraints.txt" --dest "$folder" "${wanted[@]}" \
            >"$folder/pip.log" 2>&1 ||
        stop 2 "--fill: pip cannot get the wheels:" \
            "$(grep -i '^ *error' "$folder/pip.log" | head -n 1); all that pip said is in $folder/pip.log"
    echo "benchmarks/gpu.sh: take $folder along, and there: bash benchmarks/gpu.sh --carry $folder"
}

# Bring .venv-carry to where it has what python3 has, and of the wheels in folder $1 what that lacks.
carry() {
    local wheels=$1 folder=$hpcbench_venv-carry wanted needed=()
    [ -n "$(compgen -G "$wheels/*.whl")" ] ||
        stop 2 "--carry: there are no wheels in $wheels: fill it by --fill where there is a network"
    wheels=$(cd "$wheels" && pwd)
    wanted=$(fingerprint; cd "$wheels" && cksum -- *.whl | cksum)
    wanted=${wanted//$'\n'/ }
    up_to_date "$folder" "$wanted" && return
    mapfile -t needed < <(carried)
    [ "$(identity "$folder/bin/python")" = "$python_identity" ] || touch "$folder/hpcbench-incomplete" 2>/dev/null
    if "$python" -c 'import sys; sys.exit(sys.prefix != sys.base_prefix)'; then
        make_venv "$folder" --system-site-packages --without-pip
    else  # of a virtual environment itself, whose packages are not those of the system
        make_venv "$folder" --without-pip
        "$python" - "$folder" <<'PYTHON' || stop 2 "--carry: $folder cannot be written"
import pathlib, site, sys
(there,) = pathlib.Path(sys.argv[1]).glob("lib/python3*/site-packages")
lines = [f"import site; site.addsitedir({folder!r})\n" for folder in site.getsitepackages()]
(there / "hpcbench-base.pth").write_text("".join(lines))
PYTHON
    fi
    echo "benchmarks/gpu.sh: installing from $wheels in $folder (tail -f $folder/pip.log)"
    "$folder/bin/python" -m pip --version >/dev/null 2>&1 ||
        "$folder/bin/python" -m ensurepip >"$folder/pip.log" 2>&1 ||
        stop 2 "--carry: $python has neither pip nor ensurepip: install one (Debian, Ubuntu: apt-get" \
            "install python3-venv), or set HPCBENCH_PYTHON=/path/to/python3"
    # MPI is taken from the wheels in any case: its mpi4py and its mpirun belong together
    carried_pip "$folder" "$wheels" --ignore-installed --no-deps mpich mpi4py &&
        carried_pip "$folder" "$wheels" "${needed[@]}" ||
        stop 2 "--carry: pip cannot install from $wheels: $(grep -i '^ *error' "$folder/pip.log" |
            tail -n 1); fill it for this Python: bash benchmarks/gpu.sh --fill DIR" \
            "${python_identity%% *} $(uname -m)"
    stamp "$folder" "$wanted"
}

# Install into folder $1 from the wheels of folder $2 alone, whatever pip's settings say.
carried_pip() {
    local folder=$1 wheels=$2
    shift 2
    PIP_CONFIG_FILE=/dev/null "$folder/bin/python" -m pip --isolated --disable-pip-version-check \
        install --no-input --no-index --find-links "$wheels" "$@" >>"$folder/pip.log" 2>&1
}

arguments=() setup=yes needs_gpu=yes wheels=
while [ "$#" -gt 0 ]; do
    case $1 in
        -h | --help) help_if_asked "${BASH_SOURCE[0]}" --help ;;
        --no-setup) setup= ;;
        --carry) wheels=${2:-}; setup=carry; [ -n "$wheels" ] || stop 2 "--carry needs a folder"; shift ;;
        --carry=*) wheels=${1#*=} setup=carry ;;
        --fill)
            [ -n "${2:-}" ] || stop 2 "--fill needs a folder"
            choose_python
            shift
            fill "$@"
            exit ;;
        --steps | --steps=*) needs_gpu=; arguments+=("$1") ;;  # the file says what it needs
        *) arguments+=("$1") ;;
    esac
    shift
done
if [ -n "$needs_gpu" ] && ! sees_gpu; then
    stop 5 "no GPU: there is no /dev/nvidia* and no nvidia-smi; nothing was run"
fi
case $setup in
    yes)
        (set_up mpich test) ||
            stop 2 "without a network, see --carry and --fill: bash benchmarks/gpu.sh --help"
        python=$hpcbench_venv/bin/python ;;
    carry)
        choose_python
        (lock; carry "$wheels") || exit
        python=$hpcbench_venv-carry/bin/python ;;
    *)
        python=${HPCBENCH_PYTHON:-}
        [ -n "$python" ] || { python=python3; [ -x "$hpcbench_venv/bin/python" ] && python=$hpcbench_venv/bin/python; }
        identity "$python" >/dev/null || stop 2 "cannot run $python: set HPCBENCH_PYTHON=/path/to/python3" ;;
esac
mpirun=$(dirname "$(command -v "$python")")/mpirun
[ -x "$mpirun" ] || mpirun=mpirun
case $("$mpirun" --version 2>&1 </dev/null | head -n 2) in *"Open MPI"* | *OpenRTE*) openmpi_settings ;; esac
export PYTHONPATH=$hpcbench_root/benchmarks:$hpcbench_root${PYTHONPATH:+:$PYTHONPATH}
exec "$python" -m gpu ${arguments[@]+"${arguments[@]}"}
