"""Text for people: aligned columns whose numbers are never cut, and short forms of many cases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcbench.kinds.collective.plan.workload import Collective, collective_of
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.case import Case
from hpcbench.plan.options import Option
from hpcbench.reduce.results import CaseResult
from hpcbench.units import format_bytes

MISSING = "-"
GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title, the unit printed below it, and whether it holds words (left-aligned)."""

    title: str
    unit: str = ""
    words: bool = False


def header_lines(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """Return the title line and, where any column has one, the line of units."""
    lines = [[column.title for column in columns], [column.unit for column in columns]]
    return [row_line(columns, widths, line) for line in lines if any(line)]


def row_line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    """Return one line; cells are padded to their column's width and never cut."""
    padded = (
        cell.ljust(width) if column.words else cell.rjust(width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    )
    return GAP.join(padded).rstrip()


def column_widths(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[int]:
    """Return for each column the width of its longest cell, title or unit."""
    lines = [[c.title for c in columns], [c.unit for c in columns], *rows]
    return [max(len(line[index]) for line in lines) for index in range(len(columns))]


def without_empty(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows without the columns in which no row says anything."""
    kept = [at for at in range(len(columns))
            if not rows or any(row[at] not in ("", MISSING) for row in rows)]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def format_us(seconds: float | None) -> str:
    """Return microseconds as a plain decimal with at least three significant digits."""
    return MISSING if seconds is None else format_number(seconds * 1e6)


def format_gb_per_s(bytes_per_s: float | None) -> str:
    """Return GB/s (1e9 B) as a plain decimal."""
    return MISSING if bytes_per_s is None else format_number(bytes_per_s / 1e9)


def format_number(value: float) -> str:
    """Return a plain decimal, never an exponent, with at least three significant digits."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    decimals = 2 - magnitude if magnitude < 0 else (2 if abs(value) < 1000 else 1)
    return f"{value:.{decimals}f}"


def type_cell(case: Case) -> str:
    """Return the dtype; MISSING for barrier, which has no data."""
    return MISSING if case.workload.name == "barrier" else case.workload.dtype


def in_place_cell(case: Case) -> str:
    """Return ``in``, ``out`` or MISSING: whether it sends from the receive buffer."""
    return {None: MISSING, True: "in", False: "out"}[collective_of(case).in_place]


def form_text(case: Case) -> str:
    """Return ``split linear, 2 groups``, or nothing for even parts and one group."""
    work = case.workload
    if not isinstance(work, Collective):
        return ""
    parts = [f"split {work.split}"] if work.split != "even" else []
    parts += [plural(work.groups, "group")] if work.groups != 1 else []
    return ", ".join(parts)


def plural(count: int, noun: str) -> str:
    """Return ``1 rank``, ``4 ranks``; ``1 pass``, ``2 passes``; ``2 launches``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def device_type(result: CaseResult) -> str:
    """Return ``cpu`` or ``cuda``: where the case ran, or was planned to run."""
    return (result.device or result.case.device).split(":")[0]


def device_memory_how(result: CaseResult) -> str | None:
    """Return ``direct``, ``staged``, ``direct,staged`` where ranks differ; None if unknown."""
    said = [left["device_memory"] for left in result.detail.values() if "device_memory" in left]
    return distinct(sorted(item["how"] for item in said)) or None


def device_memory_text(result: CaseResult) -> str:
    """Return ``staged through the host`` or the like; nothing for what is usual, direct on cpu."""
    how = device_memory_how(result)
    if how is None or (how == "direct" and device_type(result) == "cpu"):
        return ""
    return {"staged": "staged through the host", "direct": "direct"}.get(
        how, "direct on some ranks, staged through the host on others")


def env_text(case: Case) -> str:
    """Return ``NCCL_ALGO=Ring NCCL_PROTO=LL``, or nothing."""
    return " ".join(f"{key}={value}" for key, value in case.env)


def size_range(cases: Iterable[Case]) -> str:
    """Return ``64KiB`` or ``8..64MiB``; MISSING where no case has a size."""
    sizes = sorted({case.workload.size_bytes for case in cases
                    if isinstance(case.workload, Collective)} - {0})
    if not sizes:
        return MISSING
    first, last = format_bytes(sizes[0]), format_bytes(sizes[-1])
    return first if len(sizes) == 1 else f"{first}..{last}"


def distinct(values: Iterable[object]) -> str:
    """Return the different values, comma-separated, in order of appearance; None is left out."""
    return ",".join(dict.fromkeys(str(value) for value in values if value is not None))


def _forms(cases: Sequence[Case]) -> list[str]:
    works = [case.workload for case in cases if isinstance(case.workload, Collective)]
    splits = distinct(sorted({work.split for work in works}))
    groups = distinct(sorted({work.groups for work in works}))
    parts = [f"split={splits}"] if splits not in ("", "even") else []
    return [*parts, *([f"groups={groups}"] if groups not in ("", "1") else [])]


def _problems(cases: Sequence[Case]) -> list[str]:
    """Return the implementations of primitives, and which problems they were to solve."""
    works = [case.workload for case in cases if isinstance(case.workload, Primitive)]
    if not works:
        return []
    return [distinct(work.implementation for work in works), distinct(work.order for work in works),
            *(f"{name}={span_text(getattr(work, name) for work in works)}"
              for name in ("m", "n", "k"))]


def _trainings(cases: Sequence[Case]) -> list[str]:
    """Return the models that were to be trained, and how much of each step."""
    works = [case.workload for case in cases if isinstance(case.workload, Training)]
    if not works:
        return []
    tokens = [work.seq_length for work in works if not work.of_images]
    images = [work.image_size for work in works if work.of_images]
    return [distinct(work.model for work in works),
            *([f"seq={span_text(tokens)}"] if tokens else []),
            *([f"image={span_text(images)}"] if images else []),
            f"batch={span_text(work.batch_size for work in works)}"]


def problem_text(work: Primitive) -> str:
    """Return ``m=64 n=64 k=32``, and what model it comes from, if it comes from one."""
    return " ".join([f"m={work.m} n={work.n} k={work.k}", *([work.shape] if work.shape else [])])


def model_text(work: Training) -> str:
    """Return ``2 layers, hidden 64, sequence 32``: the shape in which a model was trained.

    Of images ``16 layers, width 64, images of 224 pixels``.
    """
    wide = f"width {work.width}" if work.of_images else f"hidden {work.hidden}"
    sample = (f"images of {work.image_size} pixels" if work.of_images else
              f"sequence {work.seq_length}")
    return (f"{plural(work.layers, 'layer')}, {wide}, {sample}"
            f"{', shrunk' if work.shrunk else ''}")


def strategy_text(work: Training) -> str:
    """Return ``data``, or ``data (communication off)`` of what trains nothing."""
    return work.strategy if work.trains else f"{work.strategy} (communication {work.communication})"


def options_text(options: Sequence[tuple[str, Option]]) -> str:
    """Return ``chunks=4 weight=sharded``, or nothing."""
    return " ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}"
                    for name, value in options)


def span_text(numbers: Iterable[int]) -> str:
    """Return ``64``, or ``64..8192``: the least and the most of at least one number."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]}..{found[-1]}"


def summarise_cases(cases: Sequence[Case]) -> str:
    """Return one short line that tells what a set of cases has in common and spans."""
    parts = [
        distinct(case.workload.name for case in cases),
        *_problems(cases), *_trainings(cases), *_forms(cases),
        distinct(case.backend for case in cases),
        distinct(cell for case in cases if (cell := type_cell(case)) != MISSING),
        size_range(cases),
        ("n=" if all(case.kind == "collective" for case in cases) else "ranks=")
        + distinct(sorted({case.world_size for case in cases})),
        distinct(env_text(case) or None for case in cases),
    ]
    return " ".join(part for part in parts if part not in ("", MISSING))
