"""Labels of cases for a few lines of text: without the words that tell none of them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcbench.grouping import grouped


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
