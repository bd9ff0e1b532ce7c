"""Texts that fit: measured in inches, cut where they are too long, and still told apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from os.path import commonprefix

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

POINTS = 72
HINTED = 1.06
"""Characters of a PNG are on whole pixels: a line of narrow ones is wider by as much."""
LONGEST_MEASURED = 400
"""Nothing longer fits any figure; measuring a text of 10 kB would take long."""
DOTS = "..."
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")


def width(text: str, size: float, *, bold: bool = False) -> float:
    """Return how wide the longest line of a text is, in inches; ``size`` is in points."""
    return max((_measured(line[:LONGEST_MEASURED], size, bold=bold)
                for line in text.split("\n") if line), default=0.0)


@lru_cache(maxsize=4096)
def _measured(line: str, size: float, *, bold: bool) -> float:
    font = FontProperties(size=size, weight="bold" if bold else "normal")
    points, *_ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
    return float(points) * HINTED / POINTS


def legend_rows(inches: Sequence[float], room: float) -> int:
    """Return how many rows a legend has: its columns are as wide as what is in them."""
    for rows in range(1, len(inches)):  # matplotlib fills a column before the next one
        if sum(max(inches[at:at + rows]) for at in range(0, len(inches), rows)) <= room:
            return rows
    return len(inches)


def cut(text: str, inches: float, size: float, *, bold: bool = False) -> str:
    """Return the text, or as much of its beginning as fits, with dots."""
    if width(text, size, bold=bold) <= inches and len(text) <= LONGEST_MEASURED:
        return text
    fits, too_long = 0, min(len(text), LONGEST_MEASURED)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if width(f"{text[:middle]} {DOTS}", size, bold=bold) <= inches:
            fits = middle
        else:
            too_long = middle
    return f"{text[:fits].rstrip()} {DOTS}"


def sentences(text: str, inches: float, size: float, more: str) -> str:
    """Return the text, or the first of its sentences that fit, and then ``more``."""
    if width(text, size) <= inches and len(text) <= LONGEST_MEASURED:
        return text
    first, *others = _SENTENCE_END.split(text)
    room = inches - width(f" {more}", size)
    kept = cut(first, room, size)
    for sentence in others:
        longer = f"{kept} {sentence}"
        if width(longer, size) > room or len(longer) > LONGEST_MEASURED:
            break
        kept = longer
    return f"{kept} {more}"


def short_labels(labels: Sequence[str], most: int) -> list[str]:
    """Return labels of at most ``most`` characters, of which those that differ still differ."""
    short = {label: label if len(label) <= most else _shortened(label, labels, most)
             for label in labels}
    seen = Counter(short.values())
    for number, (label, text) in enumerate(short.items(), 1):
        if seen[text] > 1:
            ending = f" #{number}"
            short[label] = text[:most - len(ending)] + ending
    return [short[label] for label in labels]


def fitting(
    labels: Sequence[str], at: int, inches: float, size: float, *, bold: bool = False,
) -> str:
    """Return as much of a label as fits, of which others that differ show something else."""
    label = labels[at]
    for most in range(len(label[:LONGEST_MEASURED]), len(DOTS) + 8, -2):
        text = short_labels(labels, most)[at]
        if width(text, size, bold=bold) <= inches:
            return text
    return cut(label, inches, size, bold=bold)


def _shortened(label: str, labels: Sequence[str], most: int) -> str:
    """Keep how a label begins, and what is around its first difference from the one most like it.
    """
    same = max((len(commonprefix([label, other])) for other in labels if other != label),
               default=0)
    head = most // 3
    start = min(max(same - most // 6, 0), len(label) - (most - head - len(DOTS)))
    if start <= head:
        return label[:most - len(DOTS)] + DOTS
    rest = label[start:]
    room = most - head - len(DOTS)
    ending = rest if len(rest) <= room else rest[:room - len(DOTS)] + DOTS
    return f"{label[:head]}{DOTS}{ending}"
