"""What this part offers, as the packages of others do: named by ``entry_points.txt`` beside it."""

from __future__ import annotations

from hpcbench.registry import CommandSpec, TopicSpec

COMMANDS = (CommandSpec("predict", "hpcbench.prediction.commands.predict:predict",
                        heading="Many nodes, many weeks"),
            CommandSpec("gen-config --for-prediction",
                        "hpcbench.prediction.sweeps:write_prediction_sweep", heading=""))
TOPICS = (TopicSpec("predictions", "hpcbench.prediction.topic:TOPIC"),)
