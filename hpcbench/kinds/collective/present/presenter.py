"""The presenter of collectives, and what summary.json and summary.csv hold of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcbench.kinds.collective.derive.deriver import CollectiveRecord
from hpcbench.kinds.collective.plan.workload import Collective, collective_of
from hpcbench.kinds.collective.present import charts as _charts
from hpcbench.kinds.collective.present import tables as _tables
from hpcbench.kinds.kind import Presenter
from hpcbench.operations.collectives import summary_keys
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_FIELDS, roofline_values
from hpcbench.units import to_gb_per_s
from hpcbench.views.words import distinct

Items = Sequence[CaseResult]
Records = Mapping[str, CollectiveRecord]
COMMUNICATION_FIELDS = (
    "case_id", "backend", "device", "world_size", "dtype", "op", "in_place", "size_bytes", "split",
    "groups", "group_stride", "buffers", "n", "median_s", "p95_s", "algbw_gb_per_s",
    "busbw_gb_per_s", "mode", "fold", "ci_low_s", "ci_high_s", "ci_reliable", "device_memory",
)


class CollectivePresenter(Presenter[Collective, CollectiveRecord]):
    """Presents collectives."""

    fields = ("buffers", "link_gb_per_s", "of_link", "measured_link_gb_per_s", "of_measured_link",
              *ROOFLINE_FIELDS, "group_stride")
    in_every_summary = False
    ranks_word = "n"
    plan_table = staticmethod(_tables.plan_table)
    type_word = staticmethod(_tables.type_word)
    tables = staticmethod(_tables.result_tables)
    charts = staticmethod(_charts.charts)
    heat_map_case = staticmethod(_charts.heat_map_case)

    def span_words(self, works: Sequence[Collective]) -> Iterator[str]:
        """Yield splits, numbers of groups and buffers, where they are not the usual ones."""
        splits = distinct(sorted({work.split for work in works}))
        groups = distinct(sorted({work.groups for work in works}))
        strides = distinct(sorted({work.group_stride for work in works}))
        if splits != "even":
            yield f"split={splits}"
        if groups != "1":
            yield f"groups={groups}"
        if strides != "1":
            yield f"stride={strides}"
        if (buffers := distinct(sorted({work.buffers for work in works}))) != "warm":
            yield f"buffers={buffers}"

    def size_words(self, works: Sequence[Collective]) -> Iterator[str]:
        """Yield the range of sizes."""
        yield _tables.size_range(works)

    def definitions(self, items: Items, derived: Records) -> Iterator[str]:
        """Yield what the bandwidths are."""
        yield "algbw = size / time p50, busbw = algbw x nccl-tests' factor; GB = 1e9 B"
        if any(record.of_link is not None for record in derived.values()):
            yield ("of link = busbw (of an all_reduce by NVLS: algbw x (n + 1) / n) over what the "
                   "declared links allow")
        if any(record.of_measured_link is not None for record in derived.values()):
            yield ("of pair = the same over what two ranks of this backend reached alone in this "
                   "run (kind hardware, test pairs);")
            yield ("  it is above 100 % where a call uses more links than two ranks do; bound by: "
                   "see docs/hardware.md")

    def row(self, item: CaseResult, record: CollectiveRecord | None) -> dict[str, Any]:
        """Return what only collectives have, and their rates."""
        rates = record.bandwidth if record else None
        link = item.timing and item.timing.link_bytes_per_s
        return {
            **asdict(collective_of(item.case)), "busbw_factor": record and record.busbw_factor,
            "algbw_gb_per_s": to_gb_per_s(rates.algbw_bytes_per_s) if rates else None,
            "busbw_gb_per_s": to_gb_per_s(rates.busbw_bytes_per_s) if rates else None,
            "link_gb_per_s": to_gb_per_s(link) if link else None,
            "of_link": record and record.of_link,
            "measured_link_gb_per_s": record and record.measured_link and to_gb_per_s(
                record.measured_link),
            "of_measured_link": record and record.of_measured_link,
            **roofline_values(record.roofline if record else None)}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return ``communication``: the ok rows under the names that other tools' users look for.
        """
        return {"communication": {
            name: [{field: row[field] for field in COMMUNICATION_FIELDS} for row in rows
                   if row["collective"] == collective and row["status"] == "ok"]
            for collective, name in summary_keys().items()
        }}
