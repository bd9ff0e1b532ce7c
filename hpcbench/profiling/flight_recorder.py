"""A worker's half of the flight record: a thread that answers while the worker hangs.

torch keeps the last collectives of every process group in its flight recorder (2.13: 2000 of them,
for gloo and nccl alike). A rank that waits in a collective has released Python's lock, so this
thread can read them. It sleeps in sigwait(2) and costs nothing until its supervisor asks.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import torch

from hpcbench.profiling.flight import MOST_ENTRIES


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
    try:
        dumped = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    except (AttributeError, RuntimeError, ValueError) as error:
        return {"unavailable": f"torch {torch.__version__} has no flight recorder: {error}"}
    entries = dumped.get("entries", [])
    if not entries:
        return {"unavailable": "torch's flight recorder is empty (TORCH_FR_BUFFER_SIZE=0?)"}
    return {"version": dumped.get("version", ""), "groups": dumped.get("pg_status", {}),
            "entries": entries[-MOST_ENTRIES:]}
