"""Which timed samples between the first and the last are checked: few, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator


def drawn_samples(seed: str) -> Iterator[int]:
    """Yield numbers of timed samples, from 0, in increasing order and without end.

    One is drawn of samples 2 and 3, one of 4 to 7, one of 8 to 15 and so on. So the number of
    samples need not be known, and an error that begins at any time is soon looked for. A check
    slows the next sample of small calls (docs/method.md), so there are few: with the three that are
    always made, 5 of 8 samples, 9 of 100, 12 of 1000.
    """
    draw, begin = random.Random(seed), 2
    while True:
        yield draw.randrange(begin, 2 * begin)
        begin *= 2
