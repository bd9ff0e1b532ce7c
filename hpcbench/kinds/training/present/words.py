"""Short words for trainings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.views.words import distinct, options_text, plural, span_text


def model_text(work: Training) -> str:
    """Return ``2 layers, hidden 64, sequence 32``: the shape in which a model was trained.

    Of images ``16 layers, width 64, images of 224 pixels``.
    """
    wide = f"width {work.width}" if work.of_images else f"hidden {work.hidden}"
    sample = (f"images of {work.image_size} pixels" if work.of_images else
              f"sequence {work.seq_length}")
    return (f"{plural(work.layers, 'layer')}, {wide}, {sample}"
            f"{', shrunk' if work.shrunk else ''}")


def strategy_text(work: Training) -> str:
    """Return ``data``, or ``data (communication off)`` of what trains nothing."""
    return work.strategy if work.trains else f"{work.strategy} (communication {work.communication})"


def degrees_text(work: Training) -> str:
    """Return ``dp=2 tp=2``: the degrees above 1; nothing where there is none."""
    degrees = (("dp", work.dp), ("tp", work.tp), ("pp", work.pp))
    return options_text([(name, degree) for name, degree in degrees if degree != 1])


def span_words(works: Sequence[Training]) -> Iterator[str]:
    """Yield the models, and how much of each step."""
    tokens = [work.seq_length for work in works if not work.of_images]
    images = [work.image_size for work in works if work.of_images]
    yield distinct(work.model for work in works)
    if tokens:
        yield f"seq={span_text(tokens)}"
    if images:
        yield f"image={span_text(images)}"
    yield f"batch={span_text(work.batch_size for work in works)}"
