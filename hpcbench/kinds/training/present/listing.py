"""What `hpcbench list` says of trainings: the models and the strategies."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.kinds.training.plan.models import parameters
from hpcbench.kinds.training.plan.names import (
    CHECKPOINTINGS,
    COMMUNICATIONS,
    LIBRARIES,
    OPTIMIZERS,
    TRAINING_DTYPES,
)
from hpcbench.kinds.training.plan.registry import registry
from hpcbench.kinds.training.plan.resnet import RESNETS, resnet_parameters
from hpcbench.operations.models import MODELS
from hpcbench.views.table import Column, Group, Line, Row, Show, Table
from hpcbench.views.words import option_lines

_COLUMNS = (Column("model", "model"), Column("family", "built as"), *(
    Column(title, title, Show.COUNT) for title in (
        "layers", "hidden", "heads", "kv heads", "inner", "vocab", "seq", "parameters")))
_OF_IMAGES = (Column("model", "model of images"), *(
    Column(title, title, Show.COUNT) for title in (
        "layers", "width", "classes", "image", "parameters")))


def listing() -> Iterator[Line | Table]:
    """Yield the models with their extents, and the strategies with their options."""
    yield Line("models", "title")
    yield Table("", _COLUMNS, (Group("", tuple(map(_row, MODELS))),))
    yield Table("", _OF_IMAGES, (Group("", tuple(map(_image_row, RESNETS))),))
    yield Line("")
    yield Line("training strategies", "title")
    for spec in registry().strategies.values():
        yield Line(f"  {spec.name:<20}{spec.meaning}")
        yield from option_lines(spec.options)
    for plugin in registry().plugins:
        problem = plugin.problem and f"cannot be used: {plugin.problem}"
        yield Line(f"  plug-in {plugin.name:<12}{plugin.origin}: {problem or 'offers a strategy'}",
                   "warning" if problem else "plain")
    for title, names in (("dtypes", TRAINING_DTYPES), ("optimizers", OPTIMIZERS),
                         ("checkpointing", CHECKPOINTINGS),
                         ("communication", COMMUNICATIONS), ("libraries", LIBRARIES)):
        yield Line(f"  {f'{title} of trainings':<28}{', '.join(names)}")


def _row(name: str) -> Row:
    shape = MODELS[name]
    return Row((name, shape.family, *(getattr(shape, extent) for extent in (
        "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length")),
        f"{parameters(shape):,}"))


def _image_row(name: str) -> Row:
    shape = RESNETS[name]
    return Row((name, shape.layers, shape.width, shape.classes, shape.image,
                f"{resnet_parameters(shape):,}"))
