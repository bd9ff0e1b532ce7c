"""What `hpcbench list` says of trainings: the models and the strategies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcbench.kinds.training.plan import block
from hpcbench.kinds.training.plan.any_model import AnyShape, parameters_of
from hpcbench.kinds.training.plan.registry import registry
from hpcbench.kinds.training.plan.resnet import RESNETS
from hpcbench.kinds.training.plan.workload import LOSSES
from hpcbench.operations.models import MODELS
from hpcbench.views.table import Column, Group, Line, Row, Show, Table
from hpcbench.views.words import option_lines

_EXTENTS = {"family": "built as", "layers": "layers", "hidden": "hidden", "heads": "heads",
            "kv_heads": "kv heads", "inner": "inner", "vocab": "vocab", "seq_length": "seq"}
_OF_IMAGES = {name: name for name in ("layers", "width", "classes", "image")}
"""Extent -> the title of its column."""


def listing() -> Iterator[Line | Table]:
    """Yield the models with their extents, and the strategies with their options."""
    yield Line("models", "title")
    yield _models("model", _EXTENTS, MODELS)
    yield _models("model of images", _OF_IMAGES, RESNETS)
    yield Line("")
    yield Line("training strategies", "title")
    for spec in registry().strategies.values():
        yield Line(f"  {spec.name:<20}{spec.meaning}")
        yield from option_lines(spec.options)
    for plugin in registry().plugins:
        problem = plugin.problem and f"cannot be used: {plugin.problem}"
        yield Line(f"  plug-in {plugin.name:<12}{plugin.origin}: {problem or 'offers a strategy'}",
                   "warning" if problem else "plain")
    for title, allowed in (
            ("dtypes", block.TRAINING_DTYPES), ("optimizers", block.OPTIMIZERS),
            ("checkpointing", block.CHECKPOINTINGS), ("communication", block.COMMUNICATIONS),
            ("libraries", block.LIBRARIES), ("losses", LOSSES)):
        yield Line(f"  {f'{title} of trainings':<28}{', '.join(allowed)}")


def _models(title: str, extents: Mapping[str, str], shapes: Mapping[str, AnyShape]) -> Table:
    columns = (Column("model", title), *(
        Column(name, name, Show.TEXT if name == "built as" else Show.COUNT)
        for name in (*extents.values(), "parameters")))
    return Table("", columns, (Group("", tuple(
        Row((name, *(getattr(shape, extent) for extent in extents), f"{parameters_of(shape):,}"))
        for name, shape in shapes.items())),))
