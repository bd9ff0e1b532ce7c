"""The row of one collective; imported where plans are made and results read, so without torch."""

from __future__ import annotations

from hpcbench.plugins import CollectiveSpec

SPEC = CollectiveSpec(
    name="ring_all_gather", operation="hpcbench_ring.ring:RingAllGather", aliases=("ring",),
    in_place=(False,), split=True, source="part", needs_all_ranks=True, min_world_size=2,
    busbw=lambda ranks: (ranks - 1) / ranks, calls=("send_recv",))
