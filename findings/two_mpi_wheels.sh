#!/usr/bin/env bash
# impi-rt 2021.18.1 and mpich 5.0.2, two wheels with an MPI for one environment, write files of the
# same names (libmpi.so.12, libfabric.so.1, mpirun). pip says nothing. With both, in this order:
#   - MPICH's libmpi needs a symbol version that the libfabric left there by the other lacks:
#     "libfabric.so.1: version `FABRIC_1.9' not found (required by .../libmpi.so.12)";
#   - mpi4py 4.1.0 hides that: "libmpi.so.12: cannot open shared object file: No such file or
#     directory", although the file is there;
#   - uninstalling impi-rt takes MPICH's libraries away, too, while pip lists mpich as installed.
# mpich has to be installed again (--force-reinstall) before any MPI can be loaded.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" --disable-pip-version-check "$@"; }
python() { "$folder/venv/bin/python" "$@"; }
mpi() { python -c 'from mpi4py import MPI; print(MPI.Get_library_version().split("\n")[0])' 2>&1; }
fail() { echo "changed: $1"; exit 1; }

pip install -q mpi4py==4.1.0 impi-rt==2021.18.1
mpi | grep 'Intel(R) MPI Library 2021.18' || fail "Intel MPI alone is not loaded"
pip install -q mpich==5.0.2
library=$folder/venv/lib/libmpi.so.12
[ -e "$library" ] || fail "no libmpi.so.12"
said=$(python -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$library" 2>&1 | tail -n 1) || true
echo "loader: $said" | sed "s#$folder#...#g"
case $said in *FABRIC_1.9*"not found"*) ;; *) fail "the loader takes it" ;; esac
said=$(mpi) && fail "mpi4py loads an MPI"
echo "$said" | grep 'libmpi.so.12: cannot open shared object file' || fail "mpi4py says the cause"
pip uninstall -q -y impi-rt
[ ! -e "$library" ] || fail "libmpi.so.12 stays"
pip show -q mpich || fail "pip does not list mpich"
pip install -q --force-reinstall --no-deps mpich==5.0.2
mpi | grep 'MPICH Version' || fail "MPICH is not loaded"
