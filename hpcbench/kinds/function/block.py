"""A block of functions of a Python file in a sweep file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from hpcbench.config.axes import Axis
from hpcbench.config.section import Block, Text, key


class FunctionBlock(Block):
    """The benchmarks of one Python file; each is the product of its own lists and the block's."""

    beside: ClassVar[tuple[str, ...]] = ("file",)
    paths: ClassVar[tuple[str, ...]] = beside
    suffix: ClassVar[str] = ".py"
    file: Text = Field(description="A Python file with functions marked @hpcbench.benchmark; "
                                   "relative to the sweep file.")
    function: Axis[Text] | None = key(None, "Which of its benchmarks; default: all.")
