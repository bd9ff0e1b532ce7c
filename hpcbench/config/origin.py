"""Where a configuration comes from, so that every message about it can say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hpcbench.errors import ConfigError

_LONGEST_KEY = 200


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of a file, and the key paths that the command line gives instead of it.

    All origins are equal: configurations are the same if their keys are.
    """

    source: str = field(default="", compare=False)
    overridden: tuple[str, ...] = field(default=(), compare=False)

    def line(self, key: str, message: str) -> str:
        """Return what is wrong with a key, after the place that gave it."""
        where = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}..."
        return ": ".join([part for part in (self._place(key), where) if part] + [message])

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the place that gave the key before each line of a ConfigError: ``key: message``."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError("\n".join(self.line(*_divided(line))
                                        for line in str(error).splitlines())) from None

    def _place(self, key: str) -> str:
        dotted = key.replace("[", ".").replace("]", "")
        given = any(dotted == path or dotted.startswith(f"{path}.") for path in self.overridden)
        return "command line" if given else self.source


def _divided(line: str) -> tuple[str, str]:
    key, colon, message = line.partition(": ")
    return (key, message) if colon else ("", line)
