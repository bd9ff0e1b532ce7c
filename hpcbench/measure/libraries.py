"""Which shared libraries a process has loaded that decide what is measured, and which build.

The build id that the linker wrote into a file identifies its build. Where there is none, as in
MPI wheels, a hash of size, beginning and end stands in: it holds the ELF header and the table of
sections, whose offsets hardly two builds share. Hashing whole files would read 0.4 GB of torch.
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

from hpcbench.measure.kernel_files import KernelFiles

_NAMES = re.compile(
    r"lib(torch|torch_cpu|torch_cuda|torch_hip|c10|c10_cuda|torch_ucc"
    r"|nccl|rccl|nccl-net[\w-]*|ucc|ucp|uct|ucs|mpi|mpi_\w+|open-pal|open-rte|prrte|pmix|pmi2?|fabric"
    r"|psm2|psm_infinipath|ibverbs|mlx5|rdmacm|cuda|cudart|cublas|cudnn|nvshmem_host"
    r"|amdhip64|hsa-runtime64|gomp|iomp5|omp|mkl_rt|mkl_core|openblas\w*"
    r"|jemalloc|tcmalloc\w*|mimalloc|tbbmalloc\w*|hugetlbfs|numa|c)(-[0-9a-f]{8})?[-.][\w.-]*")
_SAMPLE_BYTES = 64 * 1024
_MAPS_BYTES = 4 * 2**20
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_MOST_HEADERS = 256
_MOST_NOTE_BYTES = 64 * 1024


def loaded_libraries(files: KernelFiles | None = None) -> dict[str, dict[str, Any]]:
    """Return the libraries of this process that matter: {file name: {path, size_bytes, id}}.

    ``id`` is ``build-id:`` or ``sample:`` and a hexadecimal number, None if the file is not there
    to be read any more. A second file of one name is called ``name (2)``.
    """
    libraries: dict[str, dict[str, Any]] = {}
    for path in mapped_files(files):
        if ".so" in path.name and _NAMES.fullmatch(path.name):
            same = sum(name.partition(" (")[0] == path.name for name in libraries)
            name = f"{path.name} ({same + 1})" if same else path.name
            libraries[name] = {"path": str(path), **_identity(path)}
    return libraries


def mapped_files(files: KernelFiles | None = None) -> list[Path]:
    """Return the files that this process has mapped into its memory, in order of their paths."""
    text = (files or KernelFiles()).text("proc/self/maps", _MAPS_BYTES) or ""
    return [Path(path) for path in sorted({line.split(maxsplit=5)[5] for line in text.splitlines()
                                           if len(line.split(maxsplit=5)) == 6})]


def _identity(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            return {"size_bytes": size, "id": build_id(stream) or _sample(stream, size)}
    except (OSError, struct.error, OverflowError):
        return {"size_bytes": None, "id": None}


def build_id(stream: BinaryIO) -> str | None:
    """Return the GNU build id of a 64-bit little-endian ELF file as ``build-id:hex``, or None.

    Layout: elf(5), "ELF header", "Program header" and "Notes".
    """
    stream.seek(0)
    head = stream.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return None
    offset, = struct.unpack_from("<Q", head, 32)
    entry_size, count = struct.unpack_from("<HH", head, 54)
    if entry_size < 56:
        return None
    for number in range(min(count, _MOST_HEADERS)):
        stream.seek(offset + number * entry_size)
        kind, _, at, _, _, size, _, align = struct.unpack("<IIQQQQQQ", stream.read(56))
        if kind == _PT_NOTE and (note := _note(stream, at, size, align)):
            return note
    return None


def _note(stream: BinaryIO, at: int, size: int, align: int) -> str | None:
    """Look for the build id in one segment of notes: sizes and type, then a name and a value."""
    stream.seek(at)
    data, offset, step = stream.read(min(size, _MOST_NOTE_BYTES)), 0, 8 if align == 8 else 4
    while offset + 12 <= len(data):
        name_size, value_size, kind = struct.unpack_from("<III", data, offset)
        value_at = -(-(offset + 12 + name_size) // step) * step
        if kind == _NT_GNU_BUILD_ID and data[offset + 12:offset + 16] == b"GNU\0" and value_size:
            return f"build-id:{data[value_at:value_at + value_size].hex()}"
        offset = -(-(value_at + value_size) // step) * step
    return None


def _sample(stream: BinaryIO, size: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    for at in (0, max(0, size - _SAMPLE_BYTES)):
        stream.seek(at)
        digest.update(stream.read(_SAMPLE_BYTES))
    return f"sample:{digest.hexdigest()[:32]}"
