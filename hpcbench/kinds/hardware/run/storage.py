"""Reads and writes of files on this rank. Writes end when the disk has them (fsync).

A read is cold if the page cache was dropped before it, which the kernel reports (RWF_NOWAIT).
Files lie in a folder of the job."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist

from hpcbench.backends.groups import host_barrier
from hpcbench.errors import CaseError
from hpcbench.kinds.hardware.plan.test import BLOCK_BYTES, BLOCKS, Storage
from hpcbench.operations.data import Mismatch
from hpcbench.operations.job_folder import JobFolder
from hpcbench.operations.place import Place

_NAME = "hpcbench-storage"
_DCP = "torch.distributed.checkpoint"


class StorageOperation:
    """One way to read or write ``size_bytes`` a rank."""

    def __init__(self, work: Storage, place: Place, *, validate: bool) -> None:
        """Make the folder and what is read. Raises CaseError if there is too little space."""
        self.name, self.place, self._work = work.name, place, work
        self._group: dist.ProcessGroup = place.group
        # imported for these cases only, and before they are timed: it takes as long as torch
        self._dcp: Any = import_module(_DCP) if work.access == "write_dcp" else None
        self._opened = JobFolder(place, work.folder, _NAME, work.size_bytes * place.world_size)
        self._folder, self._system = self._opened.path, _file_system(self._opened.base)
        self._data = _pattern(work.size_bytes, place.number)
        self._file = self._folder / f"rank{place.number:05d}.bin"
        self._shared = self._folder / "shared.bin"
        self._checkpoint, self._key = self._folder / "checkpoint", f"rank{place.number}"
        self._buffer: Any = np.zeros(work.call_bytes, np.uint8)
        self._cold = self._warm = 0
        self._random = np.random.default_rng(place.number)
        self._offsets = np.zeros(0, np.int64)
        if work.reads:
            self._write_own()
        self._call = self._calls()[work.access]

    def prepare(self) -> None:
        """Make a read cold, and draw where to read; remove what a write left."""
        if self._work.access == "write_dcp":
            shutil.rmtree(self._checkpoint, ignore_errors=True)
        if not self._work.reads:
            return
        self._buffer.fill(0)
        if self._work.access == "read_random":
            pages = self._work.size_bytes // BLOCK_BYTES
            self._offsets = BLOCK_BYTES * self._random.permutation(pages)[:BLOCKS]
        self._count_cache(_dropped(self._file))

    def run(self) -> None:
        """Read or write once. Raises CaseError of a disk that is full."""
        try:
            self._call()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CaseError(f"{self._folder}: {error.strerror}") from error
            raise

    def corrupt_output(self) -> None:
        self._buffer[0] ^= 1
        if not self._work.reads:
            self._data = self._data.copy()
            self._data[0] ^= 1

    def check(self) -> Mismatch | None:
        if self._work.access == "read_random":
            expected = np.concatenate([self._data[at:at + BLOCK_BYTES] for at in self._offsets])
            return _compared(self._buffer[:len(expected)], expected)
        if self._work.reads:
            return _compared(self._buffer, self._data)
        if self._work.access == "write_dcp":
            loaded = {self._key: torch.zeros(self._work.size_bytes, dtype=torch.uint8)}
            self._dcp.load(loaded, checkpoint_id=self._checkpoint, process_group=self._group)
            return _compared(loaded[self._key].numpy(), self._data)
        shared = self._work.access == "write_one_file"
        with (self._shared if shared else self._file).open("rb") as file:
            file.seek(self.place.rank * self._work.size_bytes if shared else 0)
            return _compared(np.frombuffer(file.read(self._work.size_bytes), np.uint8), self._data)

    def answer(self) -> dict[str, Any]:
        return {"storage": {"folder": str(self._folder.parent), "file_system": self._system,
                            "cold": self._cold, "warm": self._warm}}

    def close(self) -> None:
        """Remove the files when no rank uses them any more."""
        if self.place.world_size > 1:
            host_barrier(self._group)
        self._opened.close()

    def _calls(self) -> Mapping[str, Callable[[], None]]:
        return {"read_sequential": self._read_sequential, "read_random": self._read_random,
                "write_file_per_rank": self._write_own, "write_one_file": self._write_shared,
                "write_dcp": self._write_dcp}

    def _read_sequential(self) -> None:
        with self._file.open("rb", buffering=0) as file:
            view, done = memoryview(self._buffer), 0
            while done < len(view):
                done += file.readinto(view[done:]) or len(view)

    def _read_random(self) -> None:
        with _opened(self._file, os.O_RDONLY) as file:
            for place, offset in enumerate(self._offsets.tolist()):
                begin = place * BLOCK_BYTES
                os.preadv(file, [self._buffer[begin:begin + BLOCK_BYTES]], offset)

    def _write_own(self) -> None:
        with _opened(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            _write_all(file, self._data, 0)
            os.fsync(file)

    def _write_shared(self) -> None:
        with _opened(self._shared, os.O_WRONLY | os.O_CREAT) as file:
            _write_all(file, self._data, self.place.rank * self._work.size_bytes)
            os.fsync(file)

    def _write_dcp(self) -> None:
        writer = self._dcp.FileSystemWriter(self._checkpoint, sync_files=True)
        self._dcp.save({self._key: torch.from_numpy(self._data)}, process_group=self._group,
                       storage_writer=writer)

    def _count_cache(self, is_cold: bool | None) -> None:
        self._cold += is_cold is True
        self._warm += is_cold is False


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Any:
    file = os.open(path, flags, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _write_all(file: int, data: Any, offset: int) -> None:
    view, done = memoryview(data), 0
    while done < len(view):
        done += os.pwrite(file, view[done:], offset + done)


def _pattern(size: int, rank: int) -> Any:
    """Return bytes that differ from rank to rank and that no file system can compress away."""
    return np.random.default_rng(rank).integers(0, 256, size, np.uint8)


def _compared(got: Any, expected: Any) -> Mismatch | None:
    if got.shape != expected.shape:
        return Mismatch(len(expected), len(expected), 0, f"{len(got)} bytes", str(len(expected)))
    wrong = np.flatnonzero(got != expected)
    if not len(wrong):
        return None
    first = int(wrong[0])
    return Mismatch(len(wrong), len(expected), first, str(got[first]), str(expected[first]))


def _dropped(path: Path) -> bool | None:
    """Ask the kernel to forget a file; return whether it did, None where it does not report it."""
    with _opened(path, os.O_RDONLY) as file:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return None
        return False


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder, such as ext4; nothing where unknown."""
    parts = psutil.disk_partitions(all=True)
    mounts: dict[str, str] = {part.mountpoint: part.fstype for part in parts}
    at = next((str(one) for one in (folder, *folder.parents) if str(one) in mounts), "")
    return mounts.get(at, "")
