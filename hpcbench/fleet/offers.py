"""What this part offers, as the packages of others do: named by ``entry_points.txt`` beside it."""

from __future__ import annotations

from hpcbench.registry import CommandSpec

_COMMANDS = "hpcbench.fleet.commands"
HEADING = "Many nodes, many weeks"

COMMANDS = (
    CommandSpec("history", f"{_COMMANDS}.history:history", heading=HEADING),
    CommandSpec("check --baseline-range", f"{_COMMANDS}.history:runs_of", heading=""),
    CommandSpec("hunt", f"{_COMMANDS}.hunt:hunt", heading=HEADING),
    CommandSpec("soak", f"{_COMMANDS}.soak:soak", heading=HEADING, is_job=True),
    CommandSpec("gen-config acceptance", "hpcbench.fleet.acceptance.folder:write_acceptance",
                heading=""),
)
