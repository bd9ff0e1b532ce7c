"""Make a Python process on Linux lack what macOS lacks, as far as hpcbench can see.

Python imports this module at its start if its folder is on PYTHONPATH. What other packages decide
when they are imported is decided before, for Linux: they are real, and run here.
"""

from __future__ import annotations

import errno
import multiprocessing.popen_fork  # noqa: F401
import os
import select
import signal
import socket
import sys

import h5py  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import numpy as np  # noqa: F401
import psutil  # noqa: F401
import pydantic  # noqa: F401
import rich.console  # noqa: F401
import torch  # noqa: F401

LINUX_ONLY = {
    os: ("memfd_create", "MFD_CLOEXEC", "pidfd_open", "fdatasync", "sched_getaffinity",
         "sched_setaffinity", "sched_getscheduler", "SCHED_RESET_ON_FORK", "eventfd", "pipe2",
         "posix_fadvise", "posix_fallocate", "splice", "getxattr", "sched_getparam"),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    select: ("epoll",),
    socket: ("SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_NETLINK", "AF_PACKET"),
}
KERNEL = ("/proc", "/sys", "/dev/shm")  # noqa: S108


def _hide(event: str, arguments: tuple[object, ...]) -> None:
    """Say that the kernel's files are not there, except to packages of others."""
    if event != "open" or not str(arguments[0]).startswith(KERNEL):
        return
    frame = sys._getframe()
    while frame := frame.f_back:
        name = str(frame.f_globals.get("__name__"))
        if name.startswith("hpcbench"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
        if name.startswith(("psutil", "torch", "mpi4py")):
            return


for module, names in LINUX_ONLY.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
sys.addaudithook(_hide)
