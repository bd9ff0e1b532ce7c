"""The presenter of primitives, and what summary.json and summary.csv hold of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.primitive.derive.partners import NOTHING, PrimitiveRecord
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.kinds.primitive.present import charts as _charts
from hpcbench.kinds.primitive.present import listing as _listing
from hpcbench.kinds.primitive.present import tables as _tables
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_FIELDS, roofline_values
from hpcbench.units import to_gb_per_s, to_tflop_per_s
from hpcbench.views.chart import Chart
from hpcbench.views.columns import ends_of, names_of
from hpcbench.views.roofline import roofline_charts, roofline_definitions, roofline_tables
from hpcbench.views.table import Table
from hpcbench.views.words import distinct, options_text, span_text

COMPARED_FIELDS = ("exposed_s", "overlap_efficiency", "times_longest_part", "speedup_over_torch")
"""Each is a median over passes, with three more fields (`names_of`)."""
RANGE_FIELDS = tuple(field for name in COMPARED_FIELDS for field in names_of(name))
PROBLEM_FIELDS = (
    "primitive", "implementation", "order", "options", "problem_m", "problem_n", "problem_k",
    "shape", "flops", "total_flops", "wire_bytes",
)
RATE_FIELDS = ("busiest_rank_tflop_per_s", "all_ranks_tflop_per_s", "of_measured_product",
               "of_declared_product")
PRIMITIVE_FIELDS = (*PROBLEM_FIELDS, *RATE_FIELDS, "compute_only_s", "comm_only_s", *RANGE_FIELDS,
                    "not_compared", *ROOFLINE_FIELDS)
LISTED_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "mode", "fold", "env",
    *PROBLEM_FIELDS[1:], "size_bytes", "n", "median_s", "p95_s", "ci_low_s", "ci_high_s",
    "ci_reliable", *RATE_FIELDS, "algbw_gb_per_s", "busbw_gb_per_s", *RANGE_FIELDS,
    *ROOFLINE_FIELDS,
)
"""Fields of each row of ``results.primitives``."""
Items = Sequence[CaseResult]
Records = Mapping[str, PrimitiveRecord]


class PrimitivePresenter(Presenter[Primitive, PrimitiveRecord]):
    """Presents primitives."""

    fields = PRIMITIVE_FIELDS
    plan_table = staticmethod(_tables.plan_table)
    tables = staticmethod(_tables.result_tables)
    heat_map_case = staticmethod(_charts.heat_map_case)
    listing = staticmethod(_listing.listing)

    def span_words(self, works: Sequence[Primitive]) -> Iterator[str]:
        """Yield the implementations and orders, and which problems they were to solve."""
        yield distinct(work.implementation for work in works)
        yield distinct(work.order for work in works)
        for name in ("m", "n", "k"):
            yield f"{name}={span_text(getattr(work, name) for work in works)}"

    def overviews(self, items: Items, derived: Records) -> Iterator[Table]:
        """Yield what binds each case."""
        yield from roofline_tables("primitives", _tables.rooflines(items, derived),
                                   of=any(item.status == "ok" for item in items))

    def charts(self, items: Items, derived: Records) -> Iterator[Chart]:
        """Yield the implementations of each problem, then what binds them."""
        yield from _charts.charts(items, derived)
        yield from roofline_charts("primitives", _tables.rooflines(items, derived))

    def definitions(self, items: Items, derived: Records) -> Sequence[str]:
        """Return what rates and comparisons are."""
        return (*_tables.DEFINITIONS,
                *roofline_definitions(_tables.rooflines(items, derived)))

    def row(self, item: CaseResult, record: PrimitiveRecord | None) -> dict[str, Any]:
        """Return a case's fields and the two bandwidths; None where there is no number."""
        work, known = primitive_of(item.case), record or NOTHING
        flops, rates = known.flops, known.communication
        values: dict[str, Any] = {name: getattr(work, name) for name in (
            "primitive", "implementation", "order", "shape", "flops", "total_flops", "size_bytes",
            "wire_bytes")}
        values |= {f"problem_{name}": getattr(work, name) for name in ("m", "n", "k")}
        values |= {
            "options": [options_text([option]) for option in work.options],
            "busiest_rank_tflop_per_s": (
                to_tflop_per_s(flops.busiest_rank_flops_per_s) if flops else None),
            "all_ranks_tflop_per_s": (
                to_tflop_per_s(flops.all_ranks_flops_per_s) if flops else None),
            "of_measured_product": known.of_measured_product,
            "of_declared_product": known.of_declared_product,
            "compute_only_s": known.compute_s, "comm_only_s": known.communicate_s,
            "not_compared": list(known.missing),
            "algbw_gb_per_s": to_gb_per_s(rates.algbw_bytes_per_s) if rates else None,
            "busbw_gb_per_s": to_gb_per_s(rates.busbw_bytes_per_s) if rates else None}
        compared = (known.exposed_s, known.efficiency, known.times_longest, known.speedup)
        for name, passes in zip(COMPARED_FIELDS, compared, strict=True):
            values |= ends_of(name, passes)
        return values | roofline_values(known.roofline)

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return ``primitives``: the ok rows by primitive."""
        return {"primitives": {
            name: [{field: row[field] for field in LISTED_FIELDS} for row in rows
                   if row["primitive"] == name and row["status"] == "ok"]
            for name in dict.fromkeys(row["primitive"] for row in rows)}}
