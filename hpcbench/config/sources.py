"""Where a configuration comes from, for users who ask: its file, and what overrides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcbench.config.load import PACKAGED, find_config
from hpcbench.config.names import quote


def source_lines(path: Path | None, overrides: Sequence[tuple[str, object]]) -> Iterator[str]:
    """Yield which sweep file is read, and each override. Raises FileError as `find_config` does."""
    file = find_config(path)
    why = ("as given" if path is not None else
           "packaged: there is no ./config.json" if file == PACKAGED else "of this folder")
    yield f"sweep file: {file.absolute()} ({why})"
    for key, value in overrides:
        yield f"override: {key} = {quote(value)}"
