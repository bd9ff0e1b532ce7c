"""What the launcher's variables say: a cross-check of MPI, and who speaks before MPI does."""

from __future__ import annotations

from collections.abc import Mapping

_ANNOUNCED = (
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"),
    ("PMI_SIZE", "MPICH's mpirun or srun --mpi=pmi2"),
    ("MV2_COMM_WORLD_SIZE", "MVAPICH2's mpirun"),
)


def announced_size(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return (number of ranks, launcher) as the innermost launcher says it, or None.

    SLURM_NTASKS counts only in a job step that no mpirun started: mpirun's daemons are a job
    step of their own, and their SLURM_* variables reach the ranks.
    """
    for name, launcher in _ANNOUNCED:
        if environ.get(name, "").isdigit():
            return int(environ[name]), launcher
    if "SLURM_STEP_ID" in environ and environ.get("SLURM_STEP_NUM_TASKS", "").isdigit():
        return int(environ["SLURM_STEP_NUM_TASKS"]), "srun"
    return None


def announced_rank(environ: Mapping[str, str]) -> int:
    """Return the rank as the launcher says it, 0 if none does: who speaks before MPI does."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return 0
