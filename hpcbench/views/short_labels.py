"""Labels of cases for a few lines of text: without the words that tell none of them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpcbench.units import grouped


def short_labels(labels: Iterable[str]) -> Mapping[str, str]:
    """Return each label with its title, and of its other words those that not all have.

    The title is the first word. Only labels with the same title are told apart.
    """
    by_title = grouped((label.split(" ", 1)[0], label) for label in dict.fromkeys(labels))
    return {label: short for title, alike in by_title.items()
            for label, short in _shortened(title, alike)}


def _shortened(title: str, labels: Iterable[str]) -> Iterable[tuple[str, str]]:
    words = {label: label.split()[1:] for label in labels}
    shared = set.intersection(*map(set, words.values()))
    for label, own in words.items():
        yield label, " ".join((title, *(word for word in own if word not in shared)))


def shortened(text: str, labels: Mapping[str, str]) -> str:
    """Return a text with short labels in place of those that it names."""
    for label in sorted(labels, key=len, reverse=True):
        text = text.replace(label, labels[label])
    return text


def told_apart(titles: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return titles; those that several have, with those of their words that tell them apart."""
    alike = grouped((title, frozenset(words)) for title, words in titles)
    return [" ".join((title, *(word for word in words
                               if word and not all(word in other for other in alike[title]))))
            for title, words in titles]


def without_shared(labels: Sequence[str]) -> tuple[str, list[str]]:
    """Return the words that all of several labels have, and each label without them.

    A label that has no other words keeps its first one. Of a single label nothing is taken.
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
