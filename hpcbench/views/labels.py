"""Names of cases for people to read: the words of their labels that distinguish them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
_SIZE = re.compile(r"\d+B")


def vary(rows: Iterable[Sequence[T]]) -> tuple[dict[int, T], list[int]]:
    """Return the places at which all rows have the same value, with it, and those at which they
    differ. No rows have nothing in common, and do not differ."""
    values = [dict.fromkeys(column) for column in zip(*rows, strict=True)]
    shared = {at: next(iter(same)) for at, same in enumerate(values) if len(same) == 1}
    return shared, [at for at in range(len(values)) if at not in shared]


def short_labels(labels: Iterable[str]) -> Mapping[str, str]:
    """Return `distinct_names` of each label, the title of which is its first word."""
    each = list(dict.fromkeys(labels))
    titles = [(label.split(" ", 1)[0], label.split()[1:]) for label in each]
    return dict(zip(each, distinct_names(titles), strict=True))


def shortened(text: str, labels: Mapping[str, str]) -> str:
    for label in sorted(labels, key=len, reverse=True):
        text = text.replace(label, labels[label])
    return text


def distinct_names(titles: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return titles; those that several have, with those of their words that distinguish them.

    A word is left out where all with the same words before it have it; a size, only where all of
    the title have it.
    """
    alike: dict[tuple[str, ...], list[frozenset[str]]] = {}
    for title, words in titles:
        alike.setdefault((title,), []).append(frozenset(words))
    names = []
    for title, words in titles:
        name: tuple[str, ...] = (title,)
        for word in filter(None, words):
            rivals = alike[(title,) if _SIZE.fullmatch(word) else name]
            if any(word not in other for other in rivals):
                longer = (*name, word)
                if longer not in alike:
                    alike[longer] = [other for other in alike[name] if word in other]
                name = longer
        names.append(" ".join(name))
    return names


def without_shared(labels: Sequence[str]) -> tuple[str, list[str]]:
    """Return the words that all of several labels have, and each label without them.

    A label that has no other words keeps its first one. A single label keeps all words.
    """
    words = [label.split() for label in labels]
    if len({*labels}) < 2:
        return "", [*labels]
    shared = set.intersection(*map(set, words))
    own = [" ".join(word for word in each if word not in shared).rstrip(",") or each[0]
           for each in words]
    if len({*own}) < len({*labels}):  # labels may differ in how often they have a word
        return "", [*labels]
    return " ".join(word for word in words[0] if word in shared), own
