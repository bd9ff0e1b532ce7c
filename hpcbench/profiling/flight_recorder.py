"""A worker's half of the flight record: a thread that answers while the worker hangs.

torch keeps the last collectives of every process group in flight recorders (2.13: 2000 of them):
those of NCCL in one, with events of the GPU, all others in another. A rank that waits in a
collective has released Python's lock, so this thread can read them. It sleeps in sigwait(2) and
costs nothing until its supervisor asks.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import torch

from hpcbench.profiling.flight import joined

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""What writes each recorder; the second is in builds with NCCL only."""


def answer_flight_requests(fd: int) -> None:
    """Write the flight record to ``fd`` whenever SIGUSR2 comes; as JSON, with a final newline.

    To be called while this process has one thread, since later ones must not take the signal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    threading.Thread(target=_answer, args=(fd,), daemon=True, name="flight record").start()


def _answer(fd: int) -> None:
    while True:
        signal.sigwait({signal.SIGUSR2})
        text = json.dumps(flight_record()) + "\n"
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)


def flight_record() -> dict[str, Any]:
    """Return torch's record of this process: its newest entries, and the state of each group.

    Holds ``unavailable``, the reason, where this torch has none or was told to keep none.
    """
    module = torch._C._distributed_c10d
    try:
        dumps = [json.loads(getattr(module, name)()) for name in _DUMPS if hasattr(module, name)]
        record = joined(dumps)
    except (RuntimeError, ValueError, KeyError) as error:
        return {"unavailable": f"torch {torch.__version__} has no flight record: {error}"}
    if not dumps:
        return {"unavailable": f"torch {torch.__version__} has no flight recorder"}
    if not record["entries"]:
        return {"unavailable": "torch's flight recorder is empty (TORCH_FR_BUFFER_SIZE=0?)"}
    return record
