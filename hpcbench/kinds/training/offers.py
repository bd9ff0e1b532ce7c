"""The commands of this kind, as the packages of others offer theirs (``entry_points.txt``)."""

from __future__ import annotations

from hpcbench.registry import CommandSpec

_COUNTS = "hpcbench.kinds.training.commands.counts"
COMMANDS = (
    CommandSpec("model", f"{_COUNTS}:model"), CommandSpec("mfu", f"{_COUNTS}:mfu"),
    CommandSpec("gen-data --model", f"{_COUNTS}:vocabulary", heading=""),
)
