"""Names of cases for people to read: the words of their labels that distinguish them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hpcbench.texts import as_field
from hpcbench.units import vary

_SIZE = re.compile(r"\d+B")


def own_words(names: Sequence[str]) -> list[str]:
    """Return the first word of each name, and those of its others that not all have."""
    words = [name.split(" ") for name in names]
    shared, _ = vary(words)
    return [" ".join((first, *(word for word in others if word not in shared)))
            for first, *others in words]


def short_labels(labels: Iterable[str], names: Iterable[str] = ()) -> Mapping[str, str]:
    """Return `distinct_names` of each label, the title of which is its first word, or that of the
    ``names`` with which it begins: a user's own name may have several words.

    Choices go before numbers, which may belong to one of them: ``over=data``, not ``bucket_mb=25``.
    """
    each, known = list(dict.fromkeys(labels)), {as_field(name) for name in names}
    firsts = [max((name for name in known if f"{label} ".startswith(f"{name} ")), key=len,
                  default=label.split(" ", 1)[0]) for label in each]
    titles = [(first, sorted(label[len(first):].split(), key=_is_number))
              for first, label in zip(firsts, each, strict=True)]
    return dict(zip(each, distinct_names(titles), strict=True))


def _is_number(word: str) -> bool:
    _, equals, value = word.partition("=")
    return bool(equals) and value[:1].isdigit()


def shortened(text: str, labels: Mapping[str, str]) -> str:
    for label in sorted(labels, key=len, reverse=True):
        text = text.replace(label, labels[label])
    return text


def distinct_names(titles: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return titles; those that several have, with those of their words that distinguish them.

    A word is left out where all with the same words before it have it; a size, only where all of
    the title have it."""
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

    A label that has no other words keeps its first one. A single label keeps all words."""
    shared, rest = vary(label.split() for label in labels)
    own = [" ".join(words).rstrip(",") or label.partition(" ")[0]
           for label, words in zip(labels, rest, strict=True)]
    if len({*labels}) < 2 or len({*own}) < len({*labels}):  # or in how often they have a word
        return "", [*labels]
    return " ".join(shared), own
