"""What this part offers, as the packages of others do: named by ``entry_points.txt`` beside it."""

from __future__ import annotations

from hpcbench.registry import CommandSpec

COMMANDS = CommandSpec("validate", "hpcbench.validation.commands:validate", heading="Measure",
                       is_job=True, posts=True, is_first=True)
