"""What `hpcbench list` says of trainings: the models and the strategies."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hpcbench.config.names import CHECKPOINTINGS, LIBRARIES, OPTIMIZERS, TRAINING_DTYPES
from hpcbench.plan.training.models import MODELS, parameters
from hpcbench.plan.training.strategies import STRATEGIES
from hpcbench.report.primitive_listing import option_lines
from hpcbench.report.text import Column, column_widths, row_line

_COLUMNS = (Column("model", words=True), Column("built as", words=True), Column("layers"),
            Column("hidden"), Column("heads"), Column("kv heads"), Column("inner"),
            Column("vocab"), Column("seq"), Column("parameters"))


def training_lines() -> Iterator[Text]:
    """Yield the models with their extents, and the strategies with their options."""
    yield Text("models", style="bold")
    rows = [_row(name) for name in MODELS]
    widths = column_widths(_COLUMNS, rows)
    for row in ([column.title for column in _COLUMNS], *rows):
        yield Text(f"  {row_line(_COLUMNS, widths, row)}")
    yield Text()
    yield Text("training strategies", style="bold")
    for spec in STRATEGIES:
        yield Text(f"  {spec.name:<20}{spec.meaning}")
        yield from option_lines(spec.options)
    for title, names in (("dtypes", TRAINING_DTYPES), ("optimizers", OPTIMIZERS),
                         ("checkpointing", CHECKPOINTINGS), ("libraries", LIBRARIES)):
        yield Text(f"  {f'{title} of trainings':<28}{', '.join(names)}")


def _row(name: str) -> list[str]:
    shape = MODELS[name]
    return [name, shape.family, *(str(getattr(shape, extent)) for extent in (
        "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length")),
        f"{parameters(shape).total:,}"]
