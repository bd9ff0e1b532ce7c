"""What `hpcbench list` says of trainings: the models and the strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from hpcbench.kinds.primitive.present.listing import option_lines
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
from hpcbench.report.text import Column, column_widths, row_line

_COLUMNS = (Column("model", words=True), Column("built as", words=True), Column("layers"),
            Column("hidden"), Column("heads"), Column("kv heads"), Column("inner"),
            Column("vocab"), Column("seq"), Column("parameters"))
_OF_IMAGES = (Column("model of images", words=True), Column("layers"), Column("width"),
              Column("classes"), Column("image"), Column("parameters"))


def training_lines() -> Iterator[Text]:
    """Yield the models with their extents, and the strategies with their options."""
    yield Text("models", style="bold")
    yield from _table(_COLUMNS, [_row(name) for name in MODELS])
    yield from _table(_OF_IMAGES, [_image_row(name) for name in RESNETS])
    yield Text()
    yield Text("training strategies", style="bold")
    for spec in registry().strategies.values():
        yield Text(f"  {spec.name:<20}{spec.meaning}")
        yield from option_lines(spec.options)
    for plugin in registry().plugins:
        problem = plugin.problem and f"cannot be used: {plugin.problem}"
        yield Text(f"  plug-in {plugin.name:<12}{plugin.origin}: {problem or 'offers a strategy'}",
                   style="yellow" if problem else "")
    for title, names in (("dtypes", TRAINING_DTYPES), ("optimizers", OPTIMIZERS),
                         ("checkpointing", CHECKPOINTINGS),
                         ("communication", COMMUNICATIONS), ("libraries", LIBRARIES)):
        yield Text(f"  {f'{title} of trainings':<28}{', '.join(names)}")


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    widths = column_widths(columns, rows)
    for row in ([column.title for column in columns], *rows):
        yield Text(f"  {row_line(columns, widths, row)}")


def _image_row(name: str) -> list[str]:
    shape = RESNETS[name]
    return [name, *map(str, (shape.layers, shape.width, shape.classes, shape.image)),
            f"{resnet_parameters(shape):,}"]


def _row(name: str) -> list[str]:
    shape = MODELS[name]
    return [name, shape.family, *(str(getattr(shape, extent)) for extent in (
        "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length")),
        f"{parameters(shape).total:,}"]
