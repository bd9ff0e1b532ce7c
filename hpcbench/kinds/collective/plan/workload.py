"""What a case of a collective runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from hpcbench.operations.collectives import (
    MOST_COLD_SETS,
    Call,
    CollectiveSpec,
    calls_of,
    cold_bytes,
    cold_sets,
    collective_spec,
)
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Features, Gpu, Workload
from hpcbench.units import plural, size_text

USUAL: Mapping[str, Any] = MappingProxyType({
    "split": "even", "groups": 1, "group_stride": 1, "buffers": "warm"})
"""What goes without saying where it is so."""


@dataclass(frozen=True, slots=True)
class Collective(Workload):
    """One collective operation, sized as nccl-tests sizes it (docs/method.md).

    ``count`` is nccl-tests' count column, in elements: the whole buffer for all_reduce, broadcast,
    reduce and send_recv, each rank's part for all_gather, reduce_scatter, all_to_all, gather and
    scatter (the largest part if ``split`` is not even), 0 for barrier. ``size_bytes`` is the size
    after rounding, ``requested_bytes`` that of the sweep file. ``op``, ``root`` and ``in_place``
    are None where the collective has no such option; a barrier moves no data, its dtype is uint8
    by convention. ``groups`` equal groups of ranks that are ``group_stride`` apart run it at the
    same time; sizes, counts and ``root`` are those of one group. With ``buffers`` ``cold``, calls
    take turns over `sets` of buffers.
    """

    collective: str
    dtype: str
    op: str | None
    root: int | None
    in_place: bool | None
    requested_bytes: int
    size_bytes: int
    count: int
    split: str = "even"
    groups: int = 1
    buffers: str = "warm"
    group_stride: int = 1
    later = ("buffers", "group_stride")

    def axes(self) -> dict[str, Any]:
        """Return what tells it from others; sizes as the sweep file has them."""
        return {name: value for name, value in asdict(self).items()
                if name not in ("size_bytes", "count")}

    @property
    def name(self) -> str:
        return self.collective

    @property
    def traits(self) -> CollectiveSpec:
        return collective_spec(self.collective)

    def own_call(self) -> Call:
        return Call(self.collective, self.dtype, self.op, self.split, self.in_place,
                    is_case=True)

    def sets(self, together_bytes: int) -> int:
        """Return over how many sets of buffers the calls take turns, which hold that together."""
        return cold_sets(self.size_bytes, together_bytes) if self.buffers == "cold" else 1

    def too_many_sets(self, together_bytes: int, where: str = "") -> str | None:
        """Return why buffers cannot be cold where all sets hold that together, or None."""
        if (sets := self.sets(together_bytes)) <= MOST_COLD_SETS:
            return None
        return (f"buffers cold: {self.size_bytes} B would need {sets} sets of buffers{where}; it "
                f"begins at {-(-together_bytes // MOST_COLD_SETS)} B")

    def unfit_for(self, gpu: Gpu) -> str | None:
        where = (" on a GPU of unknown cache" if gpu.cache_bytes is None else
                 f" on a GPU with a cache of {size_text(gpu.cache_bytes)}")
        return self.too_many_sets(cold_bytes(gpu.cache_bytes), where)

    @property
    def features(self) -> Features:
        """Return that it calls itself, or what it is made of.

        No rank can end a call before all have begun where each rank's result depends on every other
        rank's data: not where a root, or a neighbour, is all that some rank waits for, nor where a
        part is empty.
        """
        return Features(
            calls=calls_of(self.traits.calls, self.dtype) or (self.own_call(),),
            profiled_for=frozenset({"communication"}), has_result=self.traits.moves_data,
            settles=True,
            needs_all_ranks=self.traits.needs_all_ranks and self.split != "zero")

    def words(self, world_size: int) -> list[str]:
        traits, parts = self.traits, [self.collective]
        parts += [self.dtype] if traits.moves_data else []
        parts += [self.op] if self.op else []
        parts += [f"root={self.root}"] if self.root else []
        parts += [f"{self.size_bytes}B"] if traits.moves_data else []
        parts += ["in_place"] if self.in_place and traits.has_two_forms else []
        parts += ["out_of_place"] if self.in_place is False and traits.in_place == (True,) else []
        own = self.unusual_words()
        split = [own.pop("split")] if "split" in own else []
        return [*parts, *split, f"n={world_size}", *own.values()]

    def unusual(self) -> dict[str, Any]:
        """Return those of USUAL that are otherwise."""
        return {name: value for name, usual in USUAL.items()
                if (value := getattr(self, name)) != usual}

    def unusual_words(self) -> dict[str, str]:
        """Return ``groups=2`` of each of `unusual`, by name."""
        return {name: f"{name.removeprefix('group_')}={value}"
                for name, value in self.unusual().items()}


def groups_text(work: Collective) -> str:
    """Return ``2 groups``, or ``8 groups of stride 8``."""
    stride = f" of stride {work.group_stride}" if work.group_stride != 1 else ""
    return f"{plural(work.groups, 'group')}{stride}"


def collective_of(case: Case) -> Collective:
    """Raises TypeError for a case of another kind."""
    if not isinstance(case.workload, Collective):
        raise TypeError(f"{case.label} is not a collective")
    return case.workload
