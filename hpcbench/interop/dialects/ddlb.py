"""Sweep files of DDLB (github.com/samnordmann/ddlb, keys as of commit 0b92726), as they are.

The meaning of such a file there is kept: the whole weight on every rank, nccl where no backend is
named, the product of all lists. docs/primitives.md has the differences that remain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hpcbench.config.axes import Axis, named
from hpcbench.config.section import (
    TITLE,
    Dialect,
    Dtype,
    Extent,
    Implementations,
    OptionAxes,
    Section,
    Text,
    Warmup,
    key,
)

Clock = Annotated[str, named(("cpu_clock", "cuda_event"))]
Calls = Annotated[int, Field(ge=1, le=100_000)]


class DdlbBenchmark(Section):
    """The one section of such a file; defaults are those of DDLB's command line."""

    primitive: Text = Field(description="The primitive.")
    m: Axis[Extent] = Field(description="Rows of A: a number or a list.")
    n: Axis[Extent] = Field(description="Columns of W: a number or a list.")
    k: Axis[Extent] = Field(description="Inner extent: a number or a list.")
    dtype: Dtype = key("fp16", "Element type.")
    check: bool = key(True, "Check the results.", alias="validate")
    num_iterations: Calls = key(50, "Timed calls.")
    num_warmups: Warmup = key(5, "Calls before them.")
    output_csv: str | None = key(None, "Accepted, with a note.")
    time_measurement_backend: Clock | None = key(None, "Accepted, with a note.")
    barrier_at_each_iteration: bool = key(
        True, "Start each call after a barrier, or all of them back to back.")
    implementations: Implementations = Field(description="Mapping of names to lists of options.")


class DdlbFile(Dialect):
    """A whole sweep file of DDLB."""

    tool: ClassVar[str] = "DDLB"
    benchmark: DdlbBenchmark

    @classmethod
    def own_keys(cls, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return ``benchmark`` if it is a mapping, alone or of a primitive: ours is a name."""
        benchmark = raw.get("benchmark")
        own = isinstance(benchmark, Mapping) and (
            raw.keys() == {"benchmark"}
            or bool(benchmark.keys() & {"primitive", "implementations"}))
        return ("benchmark",) if own else ()

    def translated(self, file: str = "") -> dict[str, Any]:
        benchmark = self.benchmark
        columnwise = benchmark.primitive == "tp_columnwise"
        block = {
            "kind": "primitive", "primitive": benchmark.primitive, "backend": "nccl",
            "m": list(benchmark.m), "n": list(benchmark.n), "k": list(benchmark.k),
            "dtype": benchmark.dtype,
            "options": {"weight": "replicated"} if columnwise else {},
            "implementations": {
                name: [axes for one in sets for axes in _sets(name, one, columnwise=columnwise)]
                for name, sets in benchmark.implementations.items()},
        }
        return {"name": "ddlb", "title": TITLE, "notes": list(_notes(benchmark)),
                "measure": _measure(benchmark), "benchmarks": [block]}


def _measure(benchmark: DdlbBenchmark) -> dict[str, Any]:
    """Return section measure. Calls back to back are one sample of as many calls."""
    if benchmark.barrier_at_each_iteration:
        return {"mode": "barrier_start", "iterations": benchmark.num_iterations,
                "warmup": benchmark.num_warmups, "validate": benchmark.check}
    return {"mode": "pipelined", "batch": benchmark.num_iterations,
            "warmup": math.ceil(benchmark.num_warmups / benchmark.num_iterations),
            "validate": benchmark.check}


def _sets(name: str, axes: OptionAxes, *, columnwise: bool) -> Iterator[dict[str, Any]]:
    """Yield the sets of options of ours that one of DDLB's stands for.

    DDLB's sharded ``compute_only`` multiplies a rank's rows by the whole weight, as AG_after does
    before its all-gather. nvFuser's backend ``cuda`` is no process group's, so it
    becomes an option."""
    options = {option: list(values) for option, values in axes.items()}
    if name == "compute_only" and columnwise:
        options.setdefault("order", ["AG_after"])
    if name != "fuser" or "cuda" not in options.get("backend", ()):
        yield options
        return
    groups = [value for value in options["backend"] if value != "cuda"]
    if groups:
        yield {**options, "backend": groups}
    alone = {option: values for option, values in options.items() if option != "backend"}
    yield {**alone, "communicator": ["cuda"]}


def _notes(benchmark: DdlbBenchmark) -> Iterator[str]:
    if benchmark.output_csv is not None:
        yield (f"output_csv {benchmark.output_csv[:200]}: not written; every results folder has a "
               "summary.csv")
    if benchmark.time_measurement_backend is not None:
        yield (f"time_measurement_backend {benchmark.time_measurement_backend}: no choice here; "
               "the host's clock is always recorded, and the time between CUDA events wherever "
               "there is a GPU")
    if not benchmark.barrier_at_each_iteration:
        yield (f"barrier_at_each_iteration false: a sample is num_iterations = "
               f"{benchmark.num_iterations} calls back to back; how many samples there are is "
               "decided by measure.iterations")
