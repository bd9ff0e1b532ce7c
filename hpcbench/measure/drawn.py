"""Which timed samples between the first and the last are checked: few, drawn, alike on all ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator

_FIRST = 2
_MOST = 2
"""Of a stretch: 5 checks of 8 samples, 12 of 100, 19 of 1000, with the three that are always
made."""


def drawn_samples(seed: str) -> Iterator[int]:
    """Yield numbers of timed samples, from 0, in increasing order and without end.

    The number of samples need not be known. Samples 2 and 3, 4 to 7, 8 to 15 ... are a stretch
    each, of which one or two are drawn: an error that begins at any time is soon looked for.
    """
    draw, begin = random.Random(seed), _FIRST
    while True:
        yield from sorted(draw.sample(range(begin, 2 * begin), min(_MOST, -(-begin // 4))))
        begin *= 2
