"""What several cases have in common and span, in one short line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hpcbench.kinds.registry import kinds, presenter_of
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Workload
from hpcbench.reduce.results import CaseResult
from hpcbench.views.words import distinct, env_text


def span_line(cases: Sequence[Case]) -> str:
    """Return names, spans, backends, types, sizes, ranks and environment of some cases."""
    of_kind: dict[str, list[Workload]] = defaultdict(list)
    for case in cases:
        of_kind[case.kind].append(case.workload)
    shown = [(presenter_of(kind), of_kind[kind]) for kind in in_order(of_kind)]
    ranks = {presenter.ranks_word for presenter, _ in shown}
    word = ranks.pop() if len(ranks) == 1 else "ranks"
    parts = [
        distinct(case.workload.name for case in cases),
        *(part for presenter, works in shown for part in presenter.span_words(works)),
        distinct(case.backend for case in cases),
        distinct(presenter_of(case.kind).type_word(case.workload) for case in cases),
        *(part for presenter, works in shown for part in presenter.size_words(works)),
        f"{word}={distinct(sorted({case.world_size for case in cases}))}",
        distinct(env_text(case) or None for case in cases),
    ]
    return " ".join(filter(None, parts))


def items_by_kind(items: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """Return the cases of each kind, in the order of `in_order`."""
    of_kind: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        of_kind[item.case.kind].append(item)
    return {kind: of_kind[kind] for kind in in_order(of_kind)}


def in_order(names: Iterable[str]) -> list[str]:
    """Return each kind once: those that are installed in their order, then others."""
    unique = list(dict.fromkeys(names))
    return [*(name for name in kinds() if name in unique),
            *(name for name in unique if name not in kinds())]
