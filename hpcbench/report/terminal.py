"""A terminal gets colours and a progress bar, a log gets plain lines: which of them stdout is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text


def open_console(stream: TextIO | None = None) -> Console:
    """Return a console on ``stream`` (default: standard output as it is now)."""
    plain = _is_launchers_own_terminal(os.environ)
    return Console(file=stream or sys.stdout, highlight=False,
                   force_terminal=False if plain else None)


def print_lines(lines: Iterable[Text], stream: TextIO | None = None) -> None:
    """Print each line as it comes; a narrow terminal wraps it, and nothing is cut."""
    console = open_console(stream)
    for line in lines:
        console.print(line, soft_wrap=True)


def print_document(document: Mapping[str, Any]) -> None:
    """Print plain JSON values as JSON. Raises ValueError for NaN, which JSON has not."""
    print(json.dumps(document, indent=2, allow_nan=False))


def _is_launchers_own_terminal(environ: Mapping[str, str]) -> bool:
    """Tell whether stdout is the terminal that Open MPI gives every rank, with a log behind it.

    Its mpirun does so even when its own output goes to a file, so the parent's stdout decides.
    """
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return False
    try:
        behind = Path(f"/proc/{os.getppid()}/fd/1").readlink()
    except OSError:
        return False
    return not str(behind).startswith(("/dev/pts/", "/dev/tty"))
