"""How much a command says beside its result: --quiet, nothing else, or --verbose.

Details go to standard error. So standard output holds the result only, and can be parsed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from time import perf_counter

from hpcbench.masking import masked, print_traceback
from hpcbench.texts import say
from hpcbench.units import format_seconds


class Verbosity(Enum):
    """What the user asked for; a command gets it as an argument and passes it on."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"

    @property
    def is_quiet(self) -> bool:
        return self is Verbosity.QUIET

    @property
    def is_verbose(self) -> bool:
        return self is Verbosity.VERBOSE

    def details(self, lines: Iterable[str]) -> None:
        """Print lines on standard error if details are wanted, secrets masked."""
        if not self.is_verbose:
            return
        if sys.stdout is not None:
            sys.stdout.flush()  # so that both streams are in order where they share a terminal
        for line in lines:
            say(f"hpcbench: {masked(line, os.environ)}", sys.stderr)

    def announce(self, line: str) -> None:
        """Say on standard output what goes on now, unless only the result is wanted."""
        if not self.is_quiet:
            say(masked(line, os.environ))

    def complain(self, line: str) -> None:
        """Say on standard error what has failed without ending the command; call in ``except``."""
        self.traceback()
        say(f"hpcbench: {masked(line, os.environ)}", sys.stderr)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began_s = perf_counter()
        try:
            yield
        finally:
            self.details([f"{name}: {format_seconds(perf_counter() - began_s)}"])

    def traceback(self) -> None:
        if self.is_verbose:
            print_traceback(os.environ)
