"""How libraries carried a case out, as a record stores it: `measure.library_log` reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LIBRARY = "library"
"""The key of a record's detail that holds `LibraryChoices.to_json`, where any library reported."""
UNKNOWN = "unknown"
_AND = " + "


@dataclass(frozen=True, slots=True)
class LibraryChoices:
    """What the libraries reported: tuples of different texts in the order of appearance.

    ``channels`` are numbers of channels that a call used, else what the communicator has (``up to
    24``).
    """

    algorithm: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    transport: tuple[str, ...] = ()

    def to_json(self) -> dict[str, str]:
        """Return one text for each, ``unknown`` where there is none, ``A + B`` for several."""
        return {name: _AND.join(getattr(self, name)) or UNKNOWN for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, str]) -> LibraryChoices:
        """Rebuild what `to_json` gave."""
        return cls(**{name: () if data[name] == UNKNOWN else tuple(data[name].split(_AND))
                      for name in cls.__slots__})


def merged(choices: Iterable[LibraryChoices]) -> LibraryChoices:
    """Return what several ranks reported of one case; most have neither algorithm nor protocol."""
    every = list(choices)
    used = different(tuple(text for text in item.channels if text.isdecimal()) for item in every)
    return LibraryChoices(
        algorithm=different(item.algorithm for item in every),
        protocol=different(item.protocol for item in every),
        channels=used or different(item.channels for item in every),
        transport=different(item.transport for item in every))


def different(texts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all texts, each once, in the order of appearance."""
    return tuple(dict.fromkeys(text for several in texts for text in several))
