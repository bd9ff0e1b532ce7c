"""The model of a training: ours, or that of another library."""

from __future__ import annotations

from hpcbench.config.names import OWN_LIBRARY
from hpcbench.plan.training.models import shape_of
from hpcbench.plan.workload import Training
from hpcbench.workloads.training.models.base import Model
from hpcbench.workloads.training.models.transformer import Transformer


def make_model(spec: Training, blocks: range | None = None) -> Model:
    """Return the model, or the stage of ours that has these blocks, with any weights."""
    if spec.library == OWN_LIBRARY:
        return Transformer(shape_of(spec), blocks, spec.checkpointing)
    # Importing the library takes seconds, and not everyone has it.
    from hpcbench.workloads.training.models.library import LibraryModel

    return LibraryModel(shape_of(spec), spec.model, spec.checkpointing)
