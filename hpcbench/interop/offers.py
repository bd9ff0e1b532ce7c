"""What this part offers, as the packages of others do: named by ``entry_points.txt`` beside it."""

from __future__ import annotations

from hpcbench.registry import CommandSpec, DialectSpec, TopicSpec

_COMMANDS, _DIALECTS, _ANSWERS = (
    f"hpcbench.interop.{folder}" for folder in ("commands", "dialects", "answers"))

COMMANDS = (
    CommandSpec("anonymize", f"{_COMMANDS}.export:anonymize"),
    CommandSpec("record", f"{_COMMANDS}.imports:record"),
    CommandSpec("export", f"{_COMMANDS}.export:export"),
    CommandSpec("import", f"{_COMMANDS}.imports:import_"),
    CommandSpec("lint", f"{_COMMANDS}.imports:lint"),
    CommandSpec("from-command", f"{_COMMANDS}.imports:from_command"),
    CommandSpec("advise --to", f"{_COMMANDS}.export:write_tuner", heading=""),
)
DIALECTS = (
    DialectSpec("ddlb", f"{_DIALECTS}.ddlb:DdlbFile", ("benchmark",)),
    DialectSpec("torchscale", f"{_DIALECTS}.torchscale:TorchScaleFile",
                ("experiment_name", "batch_sizes", "gpu_counts", "models")),
    DialectSpec("candle", f"{_DIALECTS}.candle:CandleFile",
                ("parallelization", "training", "model")),
    DialectSpec("traffic", f"{_DIALECTS}.traffic:TrafficFile", ("format",)),
)
TOPICS = (
    TopicSpec("causes", f"{_ANSWERS}.causes:TOPIC", is_recorded=True),
    TopicSpec("what-if", f"{_ANSWERS}.what_if:TOPIC", is_recorded=True),
)
