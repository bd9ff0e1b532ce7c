"""A folder for files of a case, which all ranks share and which is gone when the case is over.

A child process removes it when this one ends, however it ends."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError
from hpcbench.operations.place import Place
from hpcbench.texts import path_of
from hpcbench.units import size_text

_MARGIN_BYTES = 2**30
"""Stays free beside the files."""
_GUARD = ("import shutil, sys; sys.stdin.read(); "
          "shutil.rmtree(sys.argv[1], ignore_errors=True)")
"""Waits for the end of the process that started it, then removes the folder."""


class JobFolder:
    """A new folder ``path`` in ``base``; all ranks of the place open it together."""

    def __init__(self, place: Place, base: str, name: str, needed_bytes: int) -> None:
        """Raise CaseError if it cannot be made, or too little is free for the files of all ranks.
        """
        self.base = path_of(base).absolute()
        self.path = self.base / f"{name}-{_agreed_number(place):x}"
        try:
            self.base.mkdir(parents=True, exist_ok=True)
            self._refuse_full(needed_bytes)
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise CaseError(f"{self.base}: {error.strerror}") from error
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(self.path)], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def _refuse_full(self, needed: int) -> None:
        free = shutil.disk_usage(self.base).free
        if free < needed + _MARGIN_BYTES:
            raise CaseError(
                f"{self.base} has {size_text(free)} free, and the files of all ranks need "
                f"{size_text(needed)} and {size_text(_MARGIN_BYTES)} to spare: give a smaller "
                "size, or another folder")

    def close(self) -> None:
        """Remove the folder; no rank uses it any more."""
        if self._guard.stdin:
            self._guard.stdin.close()
        self._guard.wait()


def _agreed_number(place: Place) -> int:
    """Return a number that all ranks have, and no other folder."""
    number = torch.tensor([secrets.randbits(40)], device=place.device)
    if place.world_size > 1:
        dist.broadcast(number, place.global_rank(0), place.group)
    return int(number)
