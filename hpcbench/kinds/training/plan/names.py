"""The names that only blocks of trainings may use."""

from __future__ import annotations

from hpcbench.operations.models import OWN_LIBRARY

TRAINING_DTYPES = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "sgd")
CHECKPOINTINGS = ("none", "selective", "operators", "full")
"""What is recomputed in backward: nothing, every second block, of all blocks what is no product,
all blocks."""
COMMUNICATIONS = ("on", "off", "only")
"""Whether a training step communicates, does all but that, or nothing but that."""
LIBRARIES = (OWN_LIBRARY, "transformers")
"""Whose model of the shape is trained."""
