"""Which options of trainings are worth a place in a table or on a figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hpcbench.kinds.training.plan.registry import strategy
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option
from hpcbench.views.words import options_text


def telling_options(works: Iterable[Training]) -> Mapping[Training, str]:
    """Return for each training, as text, the options that tell it from others of these.

    Left out is what has its default in all of them with the same strategy.
    """
    of_strategy: dict[str, list[Training]] = defaultdict(list)
    for work in works:
        of_strategy[work.strategy].append(work)
    return {work: options_text([option for option in work.options if not _is_usual(option, same)])
            for same in of_strategy.values() for work in same}


def _is_usual(option: tuple[str, Option], same: Sequence[Training]) -> bool:
    name, value = option
    spec = strategy(same[0].strategy)
    usual = spec.options.get(name) if spec else None
    return usual is not None and value == usual.default and all(
        dict(work.options).get(name, value) == value for work in same)
