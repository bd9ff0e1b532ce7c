"""Cases by a text, as ``--only`` takes it, and the text that chooses the cases that are meant.

Cases are labels by their ids."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape

from hpcbench.errors import shell_line
from hpcbench.plan.case import Case
from hpcbench.units import with_sizes

MOST_IDS = 4
"""Cases that are named one by one, where no text chooses just these."""


def fitting(labels: Mapping[str, str], texts: Sequence[str]) -> frozenset[str]:
    """Return the ids of the cases that fit a text: its id, whole words of a label side by side, or
    a pattern; if none does, of those with the words in order but apart, sizes as they are shown."""
    names: set[str] = set()
    for text in texts:
        names.update([one for one, label in labels.items() if one == text or _fits(label, text)]
                     or [one for one, label in labels.items() if _has_words(label, text.split())])
    return frozenset(names)


def labels_of(cases: Iterable[Case]) -> dict[str, str]:
    return {case.case_id: case.label for case in cases}


def _fits(label: str, text: str) -> bool:
    """Return whether a label has a text as whole words (also before a slash), or fits it."""
    return f" {text} " in f" {label} " or f" {text}/" in f" {label}" or fnmatchcase(label, text)


def _has_words(label: str, words: Sequence[str]) -> bool:
    """Return whether a label has the words in their order, sizes as they are shown: ``64KiB``."""
    left = iter(label.split())
    return bool(words) and all(any(word == own or word == with_sizes(own) for own in left)
                               for word in words)


def only_flags(meant: Collection[str], labels: Mapping[str, str]) -> str:
    """Return the flags that choose the cases with these ids and no others, as a shell takes them:
    ``--only all_gather``; "" where that would be a long list."""
    wanted = frozenset(meant)
    ids = [one for one in labels if one in wanted]
    if not ids:
        return ""
    texts = next((texts for texts in _attempts([labels[one] for one in ids], ids)
                  if fitting(labels, texts) == wanted), ())
    if len(texts) == 1:
        texts = _shortened(texts[0].split(" "), wanted, labels)
    return shell_line(*(word for text in texts for word in ("--only", text)))


def _attempts(of: Sequence[str], ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield texts: the words that all labels have, a pattern of their ends, the ids."""
    first, *others = (label.split() for label in of)
    yield (" ".join(word for word in first if all(word in other for other in others)),)
    start = os.path.commonprefix(of)
    start = start[:start.rfind(" ") + 1]
    end = os.path.commonprefix([label[len(start):][::-1] for label in of])[::-1]
    yield (f"{escape(start)}*{escape(end.lstrip('0123456789'))}",)
    if len(ids) <= MOST_IDS:
        yield tuple(ids)


def _shortened(
    words: Sequence[str], wanted: Collection[str], labels: Mapping[str, str],
) -> tuple[str]:
    """Return the text without the words that change nothing, from its end on."""
    kept = list(words)
    for at in reversed(range(len(words))):
        shorter = kept[:at] + kept[at + 1:]
        if shorter and fitting(labels, (" ".join(shorter),)) == wanted:
            kept = shorter
    return (" ".join(kept),)
