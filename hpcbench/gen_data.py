"""A file of random tokens, for trainings that are to read their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.errors import FileError, UsageError
from hpcbench.operations.token_file import DTYPES, dtype_of, sidecar
from hpcbench.registry import CommandSpec, offered
from hpcbench.trace.container import whole_file
from hpcbench.units import round_bytes

_CHUNK = 2**22


def generate(
    path: Path, count: int, vocab: int | None, model: str | None, seed: int, *, force: bool,
) -> str:
    """Write ``count`` uniformly random tokens and their description; return a line about them.

    Raises UsageError for a missing or unknown vocabulary, FileError if a file cannot be written, or
    is there and ``force`` is not given."""
    vocab_size = _vocabulary(vocab, model)
    if path.is_dir():
        raise FileError(f"{path}: is a folder; name a file in it")
    dtype, beside = dtype_of(vocab_size), sidecar(path)
    there = [str(item) for item in (path, beside) if item.exists() or item.is_symlink()]
    if there and not force:
        raise FileError(f"{' and '.join(there)}: there already; --force writes over it")
    description: dict[str, Any] = {
        "dtype": dtype, "tokens": count, "vocab": vocab_size, "seed": seed}
    with whole_file(path) as part:
        _write(part, count, vocab_size, dtype, seed)
        # written before the tokens are there: without it they would be taken for nanoGPT's
        with whole_file(beside) as description_part:
            description_part.write_text(json.dumps(description) + "\n", encoding="utf-8")
    size = count * np.dtype(DTYPES[dtype]).itemsize
    return (f"{path}: {count:,} tokens of a vocabulary of {vocab_size:,}, {dtype}, "
            f"{round_bytes(size)}")


def _vocabulary(vocab: int | None, model: str | None) -> int:
    if (vocab is None) == (model is None):
        raise UsageError("give --vocab or --model: one of them says which tokens there are")
    if vocab is not None:
        return vocab
    offer = offered(CommandSpec).get("gen-data --model")
    if offer is None:
        raise UsageError("--model: models are not part of this installation; give --vocab")
    try:
        return int(offer.load()(model))
    except UsageError as error:
        raise UsageError(f"--model: {error}") from None


def _write(path: Path, count: int, vocab: int, dtype: str, seed: int) -> None:
    generator = np.random.Generator(np.random.Philox(seed))
    with path.open("wb") as stream:
        for first in range(0, count, _CHUNK):
            tokens = generator.integers(0, vocab, min(_CHUNK, count - first), dtype=np.int64)
            stream.write(tokens.astype(DTYPES[dtype]).tobytes())
