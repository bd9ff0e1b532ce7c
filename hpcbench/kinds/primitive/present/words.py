"""Short words for primitives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.views.words import distinct, span_text


def problem_text(work: Primitive) -> str:
    """Return ``m=64 n=64 k=32``, and what model it comes from, if it comes from one."""
    return " ".join([f"m={work.m} n={work.n} k={work.k}", *([work.shape] if work.shape else [])])


def span_words(works: Sequence[Primitive]) -> Iterator[str]:
    """Yield the implementations and orders, and which problems they were to solve."""
    yield distinct(work.implementation for work in works)
    yield distinct(work.order for work in works)
    for name in ("m", "n", "k"):
        yield f"{name}={span_text(getattr(work, name) for work in works)}"
