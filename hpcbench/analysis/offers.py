"""What this part offers, as the packages of others do: named by ``entry_points.txt`` beside it."""

from __future__ import annotations

from hpcbench.registry import TopicSpec

_SUMMED_UP = ("diagnose", "waits", "conditions")
TOPICS = tuple(
    TopicSpec(name, f"hpcbench.analysis.{name}:TOPIC", in_summary=name in _SUMMED_UP)
    for name in (*_SUMMED_UP, "machine", "scaling", "cost", "bandwidth"))
"""In the order in which they are shown."""
