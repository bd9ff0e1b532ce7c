"""Files of tokens: what trainings read and ``hpcbench gen-data`` writes (docs/training.md).

Flat little-endian integers without a header, one a token: nanoGPT's ``train.bin``, Megatron's
``.bin``. A JSON file beside it describes them, ``NAME.bin.json``, all of whose keys may
be left out; without one they are uint16, as nanoGPT's are. Files of llm.c have a
header of 256 int32 (dev/data/data_common.py: magic, version, tokens)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.errors import FileError

DTYPES: Mapping[str, str] = MappingProxyType({"uint16": "<u2", "uint32": "<u4", "int32": "<i4"})
"""Name -> numpy's, of what a token may be stored as."""
NARROW = 2**16
"""Vocabularies up to this fit uint16."""
_HEADERS: Mapping[tuple[int, int], str] = MappingProxyType({
    (20240520, 1): "uint16", (20240801, 7): "uint32"})
"""Magic number and version of llm.c -> dtype."""
_HEADER_BYTES = 256 * 4
_CHUNK = 2**24

Tokens = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """How a file is laid out; ``count`` and ``vocab`` (all tokens are below it) may be unknown."""

    dtype: str
    count: int | None = None
    vocab: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The tokens of a file, mapped into memory; ``vocab`` is the one that it declares."""

    path: Path
    tokens: Tokens
    vocab: int | None


def dtype_of(vocab: int) -> str:
    """Return the narrower dtype that tokens of a vocabulary fit."""
    return "uint16" if vocab <= NARROW else "uint32"


def sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def open_tokens(path: Path, vocab: int) -> TokenFile:
    """Map a file for a model with this vocabulary. Raises FileError if it does not fit.

    The vocabulary that a file declares is believed. A file that declares none is read once."""
    size = _size(path)
    layout = _layout(path, size, vocab)
    width = np.dtype(DTYPES[layout.dtype]).itemsize
    count, rest = divmod(size - layout.offset, width)
    if rest or layout.count not in (None, count):
        expected = "" if layout.count is None else f"{layout.count} tokens of "
        raise FileError(f"{path}: has {size - layout.offset} bytes, which are not "
                        f"{expected}{layout.dtype}")
    if not count:
        raise FileError(f"{path}: holds no token")
    try:
        tokens = np.memmap(path, dtype=DTYPES[layout.dtype], mode="r", offset=layout.offset,
                           shape=(count,))
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if layout.vocab is None:
        for first in range(0, count, _CHUNK):
            check(path, tokens[first:first + _CHUNK], first, vocab)
    elif layout.vocab > vocab:
        raise FileError(f"{path}: has tokens of a vocabulary of {layout.vocab}, more than the "
                        f"model's {vocab}")
    return TokenFile(path, tokens, layout.vocab)


def check(path: Path, tokens: Tokens, first: int, vocab: int) -> None:
    """Raise FileError if a token, the first is number ``first``, is outside of 0 .. vocab."""
    if int(tokens.max()) < vocab and int(tokens.min()) >= 0:
        return
    at = int(np.argmax((tokens >= vocab) | (tokens < 0)))
    raise FileError(f"{path}: token {first + at} is {int(tokens[at])}, outside of the model's "
                    f"vocabulary of {vocab}")


def _size(path: Path) -> int:
    try:
        status = os.stat(path)  # noqa: PTH116
        readable = os.access(path, os.R_OK)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{path}: is not a regular file")
    if not readable:
        raise FileError(f"{path}: cannot be read: Permission denied")
    return status.st_size


def _layout(path: Path, size: int, vocab: int) -> TokenLayout:
    beside = sidecar(path)
    if beside.exists():
        return _beside(beside)
    if size >= _HEADER_BYTES:
        magic, version, count = (int(number) for number in np.fromfile(path, "<i4", 3))
        if (magic, version) in _HEADERS:
            return TokenLayout(_HEADERS[magic, version], count, offset=_HEADER_BYTES)
    if vocab > NARROW:
        raise FileError(f"{path}: nothing says what its tokens are, and not all of a vocabulary of "
                        f'{vocab} fit uint16; write {{"dtype": "uint32"}} into {beside}')
    return TokenLayout("uint16")


def _beside(path: Path) -> TokenLayout:
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"{path}: is not JSON: {error}") from error
    if not isinstance(keys, dict):
        raise FileError(f"{path}: must be a mapping of keys")
    dtype = keys.get("dtype", "uint16")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FileError(f"{path}: dtype {json.dumps(dtype)} is not known; allowed: "
                        f"{', '.join(DTYPES)}")
    count, vocab = keys.get("tokens"), keys.get("vocab")
    for name, value in (("tokens", count), ("vocab", vocab)):
        if value is not None and (type(value) is not int or value < 1):
            raise FileError(f"{path}: {name} must be a whole number from 1, not "
                            f"{json.dumps(value)}")
    return TokenLayout(dtype, count, vocab)
