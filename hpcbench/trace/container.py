"""Folders of attempts, and sealed files: HDF5 that is absent or whole. A sealed file is plain HDF5,
as many readers look for it at byte 0 only. Its first dataset is the seal, 512 bytes of text:
format, schema version, number of all other bytes, a CRC-32 over its lines before and those bytes,
padded with newlines; only this exact text is accepted. A file is proved whole before HDF5 sees it.
Earlier files have the seal in front of HDF5, as a user block."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from hpcbench import limits
from hpcbench.errors import NOT_AS_WRITTEN, FileError
from hpcbench.texts import from_json
from hpcbench.trace.source import UnreadableTrace, check_version

Value = TypeVar("Value")
_PREFIX = "attempt"


def attempt_folder(traces: Path, attempt: int) -> Path:
    return traces / f"{_PREFIX}{attempt}" if attempt else traces


def is_later_attempt(path: Path) -> bool:
    number = path.name.removeprefix(_PREFIX)
    return number.isdecimal() and path.name == f"{_PREFIX}{int(number)}" and path.is_dir()


def attempt_folders(traces: Path) -> list[Path]:
    """Return the folder of every attempt that there is, in order; the first need not exist."""
    later = [path for path in (traces.iterdir() if traces.is_dir() else [])
             if is_later_attempt(path)]
    return [traces, *sorted(later, key=lambda path: int(path.name.removeprefix(_PREFIX)))]


def attempt_of(traces: Path) -> int:
    return int(traces.name.removeprefix(_PREFIX)) if is_later_attempt(traces) else 0


SUITE_FILE = "suite.json"
"""The file by which the folder of a suite is known; each member has a results folder below it."""

LATEST = "latest"
"""The link to the newest run of a folder."""

PLAN_FILE = "plan.json"


def planned_ranks(run: Path) -> int | None:
    """Return the number of ranks in the plan of a run's folder; None where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return int(from_json((run / PLAN_FILE).read_bytes())["world_size"])
    return None


_CANNOT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF,
                     errno.EACCES, errno.EPERM})
"""Errors by which a file system reports that it does not sync folders, or not for this user."""


def is_suite(folder: Path) -> bool:
    return (folder / SUITE_FILE).is_file()


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Yield a descriptor for reading. Raises UnreadableTrace for no regular file (O_NONBLOCK: a
    pipe would block), and instead of an OSError of the block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableTrace("HB103", f"{path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableTrace("HB103", f"{path}: not a regular file")
        yield descriptor
    except OSError as error:
        raise UnreadableTrace("HB103", f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: Path, *, make_folder: bool = False) -> Iterator[Path]:
    """Yield a path to write to; it becomes ``path``, durable, if the block ends well. Raises
    FileError if the disk does not take it; then ``path`` is as before."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        with beside.open("rb") as stream:
            os.fsync(stream.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def read_document(
    path: Path, schema: tuple[str, int], read: Callable[[Any], Value], told: tuple[str, str],
) -> Value:
    """Return what ``read`` makes of a JSON document of this schema and version.

    ``told``: the command that writes it, and what to do about a damaged one. Raises FileError for
    none, a damaged one, or another schema."""
    command, remedy = told
    try:
        document = from_json(path.read_bytes())
        if (document.pop("schema"), document.pop("schema_version")) != schema:
            raise FileError(f"{path}: is of another schema than {schema[0]} {schema[1]}; read it "
                            "with the hpcbench that wrote it")
        return read(document)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}; give the folder that "
                        f"`{command}` wrote") from error
    except NOT_AS_WRITTEN:
        raise FileError(f"{path}: is not a file that `{command}` wrote, or is damaged; {remedy}"
                        ) from None


def sync_folder(folder: Path) -> bool:
    """Make a new or renamed file durable; return whether the file system can (FUSE and network
    shares may not). Raises OSError where the disk fails."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return False
    return True


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]


SEAL = "seal"
SEAL_BYTES = 512
MOST_TEXT = 2**28
"""Bytes of a file's texts, which are read whole: lines on a million cases have room."""
_NUMBERS = (h5py.h5t.INTEGER, h5py.h5t.FLOAT)
_ELSEWHERE = (" lies outside the file or is a link: such files are not read, as they name any file "
              "of this machine; get the file as hpcbench wrote it")
_FIRST_BYTES = 4096
"""Within these the seal begins: HDF5 puts what is written first behind its superblock."""
_CHUNK_BYTES = 1 << 20
_SEAL = re.compile(
    rb"format ([a-z-]+)\nschema_version (\d+)\npayload_bytes (\d+)\ncrc32 ([0-9a-f]{8})\n\n*")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK_BYTES = 48
_LENGTH = slice(28, 36)
"""Where superblocks of versions 2 and 3 with addresses of 8 bytes hold the file's length."""


@contextlib.contextmanager
def new_container(
    path: Path, file_format: str, schema_version: int,
) -> Iterator[h5py.File]:
    """Yield an HDF5 file to fill; ``path`` appears, whole and durable, when the block ends well.
    Raises FileError if the disk does not take it; then ``path`` is as before."""
    with whole_file(path) as beside, beside.open("w+b", buffering=0) as raw:
        image = _Image(raw.fileno())
        try:
            with h5py.File(image, "w", libver=("v110", "v110")) as file:
                offset = _place_seal(file)
                yield file
        except (OSError, RuntimeError, ValueError) as error:
            raise image.error or error from None  # the disk's error explains whatever HDF5 made
        if image.error is not None:
            raise image.error
        raw.seek(offset)
        write_all(raw.fileno(), _seal(raw.fileno(), offset, file_format, schema_version))


_OPEN_IN_ANOTHER_WAY = re.compile("(flag values don't|file close degree doesn't) match")
"""What HDF5 says of a file that this process has open already, in another way."""


@contextlib.contextmanager
def open_container(path: Path) -> Iterator[h5py.File]:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_file_locking(False, False)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    try:
        opened = h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDONLY, access)
    except OSError as error:
        is_open = _OPEN_IN_ANOTHER_WAY.search(str(error))
        raise UnreadableTrace("HB103", f"{path}: HDF5 cannot open it: " + (
            "this program has it open: close it there first" if is_open else str(error)),
        ) from error
    file = h5py.File(opened)
    try:
        yield file
    finally:  # `h5py.File.close` visits every object of all open files: 1 ms in a reduction
        opened.close()
        file.id.close()


@contextlib.contextmanager
def expected_content(path: Path) -> Iterator[None]:
    """Turn errors in reading a whole file into UnreadableTrace: another program wrote it."""
    try:
        yield
    except (*NOT_AS_WRITTEN, OSError, MemoryError) as error:
        raise UnreadableTrace("HB103", f"{path}: not the content expected: {error}") from error


def verify(path: Path, file_format: str, known_version: int, remedy: str = "") -> None:
    """Read a whole sealed file and raise UnreadableTrace unless it is as it was written.

    ``remedy`` says what can be done with a file of another format."""
    check_seal(path, file_format, known_version, remedy)
    with open_container(path) as file, expected_content(path):
        check_content(file, path)


def check_seal(path: Path, file_format: str, known_version: int, remedy: str = "") -> None:
    """As `verify`, of a file's bytes alone: what it holds is for `check_content`."""
    with open_regular(path) as descriptor:
        size, first = os.fstat(descriptor).st_size, os.pread(descriptor, _FIRST_BYTES, 0)
        first_line = f"format {file_format}\n".encode()
        offset = max(0, first.find(first_line))
        seal = first[offset:offset + SEAL_BYTES]
        missing_bytes = _claimed_bytes(first) - size
        if missing_bytes <= 0 and not first_line.startswith(seal[:len(first_line)]):
            raise UnreadableTrace("HB103", f"{path}: not a {file_format} file{remedy}")
        match = _SEAL.fullmatch(seal)
        claimed_bytes = int(match[3]) + SEAL_BYTES if match else offset + SEAL_BYTES
        missing_bytes = max(missing_bytes, claimed_bytes - size)
        if missing_bytes > 0:
            raise UnreadableTrace("HB136", f"{path}: truncated, at least {missing_bytes} bytes are "
                                  "missing: copy it again")
        if match is None or _seal(descriptor, offset, file_format, int(match[2])) != seal:
            raise UnreadableTrace("HB111", f"{path}: CRC mismatch, it was changed after it was "
                                  "written: copy it again, or run again")
    check_version(int(match[2]), known_version, path)


def check_content(file: h5py.File, path: Path, names: Collection[str] = ()) -> None:
    """Raise UnreadableTrace for a file with links and data in other files (external storage,
    virtual), which are not followed, types that hpcbench does not write, or data that unpack to
    more than the limits. ``names``: datasets, if no others are read; what lacks one is for the
    reader."""
    n_bytes = {"data": 0, "texts": 0}

    def refused(name: bytes, info: h5py.h5l.LinkInfo) -> tuple[bytes, str] | None:
        if info.type != h5py.h5l.TYPE_HARD:
            return name, _ELSEWHERE
        item = h5py.h5o.open(file.id, name)
        if isinstance(item, h5py.h5d.DatasetID):
            layout, kind = item.get_create_plist(), item.get_type()
            if layout.get_layout() == h5py.h5d.VIRTUAL or layout.get_external_count():
                return name, _ELSEWHERE
            is_text = kind.get_class() == h5py.h5t.STRING
            if kind.get_class() not in _NUMBERS and (not is_text or kind.is_variable_str()):
                return name, ": not the content expected: a type that hpcbench does not write"
            size = item.get_space().get_simple_extent_npoints() * kind.get_size()
            n_bytes["data"] += size
            n_bytes["texts"] += size if is_text else 0
        return None

    links = file.id.links
    parts = dict.fromkeys(part.encode() for name in names
                          for part in accumulate(name.split("/"), "{}/{}".format))
    refusal = next(filter(None, (refused(part, links.get_info(part)) for part in parts
                                 if links.exists(part))), None) if names else (
        links.visit(refused, info=True))
    if refusal is not None:
        raise UnreadableTrace(
            "HB103", f"{path}: {refusal[0].decode('utf-8', 'replace')}{refusal[1]}")
    for what, most in (("data", limits.unpacked(path.stat().st_size)),
                       ("texts", limits.raised(MOST_TEXT))):
        if n_bytes[what] > most:
            raise UnreadableTrace("HB103", f"{path}: its {what} unpack to {n_bytes[what]:,} "
                                  f"bytes, of {most:,} at most: {limits.remedy()}")


def _claimed_bytes(first: bytes) -> int:
    """Return how long HDF5 that begins so says that it is; 0 of other files and versions."""
    if not _SIGNATURE.startswith(first[:len(_SIGNATURE)]):
        return 0
    if len(first) < _SUPERBLOCK_BYTES:
        return _SUPERBLOCK_BYTES
    return int.from_bytes(first[_LENGTH], "little") if first[8:10] in (b"\2\10", b"\3\10") else 0


def _place_seal(file: h5py.File) -> int:
    """Write an empty seal, by h5py's lower level (a third of the time); return where it stands."""
    empty = np.array([b"\n" * SEAL_BYTES])
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_obj_track_times(False)  # else the same content is another file a second later
    dataset = h5py.h5d.create(file.id, SEAL.encode(), h5py.h5t.py_create(empty.dtype),
                              h5py.h5s.create_simple(empty.shape), dcpl=layout)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, empty)
    return int(dataset.get_offset())


def _seal(descriptor: int, offset: int, file_format: str, schema_version: int) -> bytes:
    """Return the seal that stands at ``offset`` of a whole file."""
    size = os.fstat(descriptor).st_size
    text = (f"format {file_format}\nschema_version {schema_version}\n"
            f"payload_bytes {size - SEAL_BYTES}\n").encode()
    crc = zlib.crc32(os.pread(descriptor, offset, 0), zlib.crc32(text))
    position = offset + SEAL_BYTES
    chunk = memoryview(bytearray(_CHUNK_BYTES))  # one for all: new memory is slow
    while length := os.preadv(descriptor, [chunk], position):
        crc = zlib.crc32(chunk[:length], crc)
        position += length
    return (text + f"crc32 {crc:08x}\n".encode()).ljust(SEAL_BYTES, b"\n")


class _Image(io.RawIOBase):
    """A file as HDF5 writes it. A disk's error is hidden from HDF5, which it would crash, and
    raised when HDF5 has closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def readinto(self, buffer: Any) -> int:
        return os.readv(self._descriptor, [buffer])

    def write(self, data: Any) -> int:
        try:
            if self.error is None:
                write_all(self._descriptor, data)
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        length = self.tell() if size is None else size
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            self.error = self.error or error
        return length
