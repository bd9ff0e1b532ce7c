"""Short words for cases, results and numbers, the same in every table, figure and message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcbench.plan.case import Case
from hpcbench.plan.options import Option, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Line, Range, Show


def distinct(values: Iterable[object]) -> str:
    """Return the different values, comma-separated, in order of appearance; None is left out."""
    return ",".join(dict.fromkeys(str(value) for value in values if value is not None))


def span(numbers: Iterable[int]) -> int | Range:
    """Return the one number that all are, or their range; there is at least one."""
    ordered = sorted(set(numbers))
    return ordered[0] if len(ordered) == 1 else Range(ordered[0], ordered[-1])


def span_text(numbers: Iterable[int]) -> str:
    """Return ``64``, or ``64..8192``: the least and the most of at least one number."""
    return cell_text(span(numbers), Show.COUNT)


def from_to_text(numbers: Iterable[int]) -> str:
    """Return ``20``, or ``5 to 20``: the least and the most of at least one number."""
    return span_text(numbers).replace("..", " to ")


def options_text(options: Sequence[tuple[str, Option]]) -> str:
    """Return ``chunks=4 weight=sharded``, or nothing."""
    return " ".join(f"{name}={_plain(value)}" for name, value in options)


def option_lines(options: Mapping[str, Values]) -> Iterator[Line]:
    """Yield a line of `hpcbench list` for each option: what it may be, and its default."""
    for name, values in options.items():
        allowed = (", ".join(map(_plain, values.allowed)) if values.allowed else
                   f"a number from {values.least}")
        yield listed_more(f"option {name}", f"{allowed}; default {_plain(values.default)}")


def listed_more(title: str, text: str) -> Line:
    """Return a line of `hpcbench list` below the one that it says more of."""
    return Line(f"{'':<22}{title}: {text}", "quiet")


def _plain(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def env_text(case: Case) -> str:
    """Return ``NCCL_ALGO=Ring NCCL_PROTO=LL``, or nothing."""
    return " ".join(f"{key}={value}" for key, value in case.env)


def backend_text(case: Case) -> str:
    """Return the backend, and the variables of its environment."""
    return f"{case.backend} {env_text(case)}".rstrip()


def device_type(result: CaseResult) -> str:
    """Return ``cpu`` or ``cuda``: where the case ran, or was planned to run."""
    return (result.device or result.case.device).split(":")[0]


def device_memory_how(result: CaseResult) -> str | None:
    """Return ``direct``, ``staged``, ``direct,staged`` where ranks differ; None if unknown."""
    reports = [left["device_memory"] for left in result.detail.values() if "device_memory" in left]
    return distinct(sorted(item["how"] for item in reports)) or None


def device_memory_text(result: CaseResult) -> str:
    """Return ``staged through the host`` or the like; nothing for what is usual, direct on cpu."""
    how = device_memory_how(result)
    if how is None or (how == "direct" and device_type(result) == "cpu"):
        return ""
    return {"staged": "staged through the host", "direct": "direct"}.get(
        how, "direct on some ranks, staged through the host on others")
