"""Files that are absent or whole, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcbench.errors import FileError
from hpcbench.trace.files import sync_folder


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes its name when the block ends well.

    Raises FileError if the folder cannot be made or the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        with beside.open("rb") as stream:
            os.fsync(stream.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise FileError(f"{path}: cannot write: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            beside.unlink()
