"""What stands beside the rows of bars and dots in words."""

from __future__ import annotations

from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Cell, Column


def marked(label: str, mark: str) -> str:
    """Return the label of a row, and what the row is among the others."""
    return f"{label} ({mark})" if mark else label


def value_text(cell: Cell, column: Column) -> str:
    """Return a value with its unit, as it stands alone; nothing where there is none."""
    return "" if cell is None else f"{cell_text(cell, column.show)} {column.unit}".rstrip()
