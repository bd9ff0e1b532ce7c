"""Chunks of stamps as HDF5's filters shuffle and deflate store them, several times as fast.

Shuffled, a chunk is eight planes: the lowest bytes of all its values, then the next ones. The low
planes of stamps are noise, which deflate searches in vain, and the high ones hold one byte over and
over. So noise is stored, equal bytes are deflated once and for all, and only the rest is deflated.
The result is one valid zlib stream (RFC 1950, RFC 1951) that HDF5 unpacks as any other.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt

LEVEL = 1
_HEADER = b"\x78\x01"
_LAST_BLOCK = b"\x03\x00"
_STORED_BYTES = 65535
_LOOKED_AT_BYTES = 512
_NOISY_VALUES = 130
"""Of 256 bytes of noise about 162 are different, of 7 random bits about 110."""
_NOISE_SHARE = 8
"""Chunks that pack less well than to an eighth are noise."""
_ADLER = 65521
Piece = bytes | memoryview


class Packer:
    """Packs chunks of one column.

    A chunk that equals the one before it is not packed again. So it is with numbers of ranks and
    iterations, where cases of one shape fill whole chunks.
    """

    def __init__(self) -> None:
        self._equal: dict[tuple[int, int], bytes] = {}
        self._whole: dict[tuple[bytes, int], bytes] = {}
        self._last: tuple[npt.NDArray[np.int64], bytes] | None = None

    def pack(self, chunk: npt.NDArray[np.int64]) -> bytes:
        """Return a chunk of at least one value as stored behind the filters shuffle and deflate."""
        if _is_one_value(chunk):
            return self._packed_whole(chunk)
        values = np.ascontiguousarray(chunk, dtype="<i8")
        last = self._last
        if last is not None and values[-1] == last[0][-1] and np.array_equal(values, last[0]):
            return last[1]
        differing = np.bitwise_or.reduce(values ^ values[0]).astype("<i8").tobytes()
        packed = self._packed(
            values.view(np.uint8).reshape(-1, 8), values[:1].tobytes(), differing)
        if len(packed) * _NOISE_SHARE < values.nbytes:  # noise never comes again
            self._last = values.copy(), packed
        return packed

    def _packed_whole(self, chunk: npt.NDArray[np.int64]) -> bytes:
        """Return a chunk that holds one value all over."""
        first, rows = chunk[:1].astype("<i8").tobytes(), chunk.size
        if (first, rows) not in self._whole:
            none = np.empty((rows, 0), np.uint8)
            self._whole[first, rows] = self._packed(none, first, bytes(8))
        return self._whole[first, rows]

    def _packed(self, by_row: npt.NDArray[np.uint8], first: bytes, differing: bytes) -> bytes:
        """Return a chunk, whose first value is ``first``; in zero bytes of ``differing`` all are.
        """
        pieces: list[Piece] = [_HEADER]
        checksum = 1
        for differ, group in groupby(range(8), lambda plane: differing[plane] > 0):
            planes = [*group]
            if differ:
                data = [by_row[:, plane].tobytes() for plane in planes]
                for plane_bytes in data:
                    checksum = zlib.adler32(plane_bytes, checksum)
                pieces += _differing(data)
            else:
                equal = first[planes[0]:planes[-1] + 1]
                checksum = _adler32_of_equal(equal, len(by_row), checksum)
                pieces.append(self._equal_planes(equal, len(by_row)))
        return b"".join([*pieces, _LAST_BLOCK, struct.pack(">I", checksum)])

    def _equal_planes(self, equal: bytes, rows: int) -> bytes:
        """Return the blocks of planes of which each holds one byte, of ``equal``, all over."""
        runs = [(byte, rows * sum(1 for _ in planes)) for byte, planes in groupby(equal)]
        for byte, length in runs:
            if (byte, length) not in self._equal:
                self._equal[byte, length] = _deflated(bytes([byte]) * length)
        return b"".join(self._equal[run] for run in runs)


def _is_one_value(chunk: npt.NDArray[np.int64]) -> bool:
    """Return whether all rows hold the same; of `numpy.broadcast_to` it is known unread."""
    return not chunk.strides[0] or bool(chunk[0] == chunk[-1] and np.all(chunk == chunk[0]))


def _differing(planes: Iterable[bytes]) -> Iterator[Piece]:
    """Yield the blocks of planes, of which neighbours that are no noise share them."""
    for is_noise, group in groupby(planes, _is_noise):
        if is_noise:
            for plane in group:
                yield from _stored(plane)
        else:
            yield _deflated(b"".join(group))


def _is_noise(data: bytes) -> bool:
    """Return whether deflate would find neither frequent bytes nor sequences that come again."""
    if len(set(data[:_LOOKED_AT_BYTES // 2])) < _NOISY_VALUES:
        return False
    looked_at = np.frombuffer(data[:_LOOKED_AT_BYTES], dtype=np.uint8).astype(np.uint32)
    triples = np.sort(looked_at[:-2] | looked_at[1:-1] << 8 | looked_at[2:] << 16)
    return bool(np.count_nonzero(np.diff(triples)) + 1 > 0.9 * triples.size)


def _adler32_of_equal(equal: bytes, rows: int, checksum: int) -> int:
    """Return what `zlib.adler32` gives for ``rows`` times each byte (RFC 1950, 8.2)."""
    low, high = checksum & 0xFFFF, checksum >> 16
    for byte in equal:
        high = (high + rows * low + byte * rows * (rows + 1) // 2) % _ADLER
        low = (low + byte * rows) % _ADLER
    return high << 16 | low


def _stored(data: bytes) -> Iterator[Piece]:
    """Yield blocks that are not the last ones and hold the bytes as they are, uncopied."""
    whole = memoryview(data)
    for at in range(0, len(data), _STORED_BYTES):
        part = whole[at:at + _STORED_BYTES]
        yield struct.pack("<BHH", 0, len(part), len(part) ^ 0xFFFF)
        yield part


def _deflated(data: bytes) -> bytes:
    """Return blocks that are not the last ones and end on a whole byte."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
