"""Which figures of primitives there are: one a problem, with a section an order.

Cases belong together that solve the same problem with the same backend on the same device and as
many ranks, in the same timing mode and with the same fold: then their times compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from hpcbench.kinds.primitive.derive.partners import (
    COMMUNICATE,
    COMPUTE,
    SHARDED,
    Options,
    common_options,
    parts_first,
)
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.reduce.results import CaseResult
from hpcbench.views.timing import mode_text
from hpcbench.views.words import device_type, distinct, env_text, options_text, plural

MOST_ROWS = 30
"""More rows than this are split over several figures, by section."""
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One case, and what tells it from the others of its section."""

    label: str
    item: CaseResult


@dataclass(frozen=True, slots=True)
class Section:
    """The cases of one order and one choice of the primitive's own options.

    ``compute_s`` and ``communicate_s`` are the medians of its parts alone, None without them.
    """

    title: str
    rows: tuple[Row, ...]
    compute_s: float | None
    communicate_s: float | None


@dataclass(frozen=True, slots=True)
class ProblemChart:
    """One figure."""

    title: str
    subtitle: str
    file_stem: str
    sections: tuple[Section, ...]

    @property
    def items(self) -> list[CaseResult]:
        """Return all cases."""
        return [row.item for section in self.sections for row in section.rows]


def problem_charts(items: Iterable[CaseResult]) -> list[ProblemChart]:
    """Return the figures of the primitives that have statistics."""
    problems: dict[Key, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.case.kind == "primitive" and item.statistics is not None:
            problems[_key(item)].append(item)
    return [chart for key, found in problems.items() for chart in _charts(key, found)]


def _key(item: CaseResult) -> Key:
    case, work = item.case, primitive_of(item.case)
    return (work.primitive, f"m={work.m}", f"n={work.n}", f"k={work.k}", work.dtype, case.backend,
            device_type(item), plural(case.world_size, "rank"), mode_text(item), env_text(case))


def _charts(key: Key, items: Sequence[CaseResult]) -> list[ProblemChart]:
    sections = _sections(items)
    groups = ([sections] if sum(len(section.rows) for section in sections) <= MOST_ROWS
              else [[section] for section in sections])
    primitive, m, n, k, dtype, backend, device, ranks, mode, env = key
    models = distinct(primitive_of(item.case).shape or None for item in items)
    subtitle = (backend, device, ranks, mode, dtype, models, env)
    return [ProblemChart(
        title=f"{primitive}, {m} {n} {k}: time by implementation",
        subtitle=", ".join(word for word in subtitle if word),
        file_stem=_file_name("-".join(word for word in (
            *key, group[0].title if len(groups) > 1 else "") if word)),
        sections=tuple(group)) for group in groups]


def _sections(items: Sequence[CaseResult]) -> list[Section]:
    names = _own_names([primitive_of(item.case) for item in items])
    found: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for item in items:
        work = primitive_of(item.case)
        own = options_text([option for option in work.options if option[0] in names])
        found[work.order, own].append(item)
    return [_section(" ".join(word for word in title if word), same)
            for title, same in found.items()]


def _own_names(works: Sequence[Primitive]) -> frozenset[str]:
    """Return the primitive's own options: those that several implementations all have."""
    if len({work.implementation for work in works}) == 1:
        return frozenset()
    return reduce(frozenset.intersection,
                  (frozenset(name for name, _ in work.options) for work in works))


def _section(title: str, items: Sequence[CaseResult]) -> Section:
    ordered, common = sorted(items, key=parts_first), common_options(items)
    return Section(
        title=title,
        rows=tuple(Row(_label(item, common), item) for item in ordered),
        compute_s=_alone_s(COMPUTE, ordered), communicate_s=_alone_s(COMMUNICATE, ordered))


def _label(item: CaseResult, common: Options) -> str:
    work = primitive_of(item.case)
    options = options_text([option for option in work.options
                            if option not in common and option != SHARDED])
    return f"{work.implementation} {options}".rstrip()


def _alone_s(name: str, items: Sequence[CaseResult]) -> float | None:
    """Return the median of a part alone; of compute_only that of size ``sharded``."""
    for item in items:
        work = primitive_of(item.case)
        if work.implementation == name and ("size", "unsharded") not in work.options:
            return None if item.statistics is None else item.statistics.median_s
    return None


def _file_name(text: str) -> str:
    return "".join(char if char.isalnum() or char in "-_.=" else "_" for char in text)
