"""`hpcbench run` in which rank 1 calls MPI_Abort(42) as soon as a second case has begun."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from mpi4py import MPI

from hpcbench.__main__ import main


def abort_later(out: Path) -> None:
    """Abort the job from a thread, as a library would that finds something wrong."""
    journal = out / "latest" / "traces" / "rank00000.journal"
    while not journal.exists() or journal.read_bytes().count(b'"begin"') < 2:
        time.sleep(0.02)
    MPI.COMM_WORLD.Abort(42)


if __name__ == "__main__":
    if MPI.COMM_WORLD.rank == 1:
        threading.Thread(target=abort_later, args=(Path(sys.argv[-1]),), daemon=True).start()
    sys.exit(main())
