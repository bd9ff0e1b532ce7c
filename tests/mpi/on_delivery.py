"""Run under mpirun: ranks 1.. send rank 0 a file each; what came of it is printed as JSON.

Arguments: a folder, and how many MiB each sends. The last rank has a second file to send, which is
not there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hpcbench.launch.run_folder import SeparateFolder, send_to_root
from hpcbench.launch.session import open_session
from hpcbench.measurement.process import KernelFiles


def peak_bytes() -> int:
    peak = KernelFiles().process_bytes("VmHWM")
    assert peak is not None
    return peak


def main(folder: Path, mib: int) -> None:
    with open_session(os.environ) as (comm, _):
        path = folder / f"node{comm.rank}" / f"rank{comm.rank:05d}.h5"
        files = {path.name: path} if comm.rank else {}
        if comm.rank == comm.size - 1:
            files["attempt1/lost.h5"] = path.parent / "lost.h5"
        if comm.rank:
            path.parent.mkdir()
            with path.open("wb") as stream:
                for _ in range(mib):
                    stream.write(os.urandom(1 << 20))
                stream.write(bytes([comm.rank]))
        comm.barrier()
        before = peak_bytes()
        places = {rank: SeparateFolder(f"host{rank}", str(folder)) for rank in range(1, comm.size)}
        problems = send_to_root(comm, files, places, folder / "traces")
        grown = peak_bytes() - before
        told = comm.allgather([problems, grown, path.exists()])
        if comm.rank == 0:
            print(json.dumps(told))


main(Path(sys.argv[1]), int(sys.argv[2]))
