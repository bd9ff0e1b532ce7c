"""What another tool's sweep file is: how one is recognised, its keys, and the same in ours."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hpcbench.config.section import Section

TITLE = "Benchmark Results"
"""A line that callers of DDLB and of the Candle suite look for in the output."""


class Dialect(Section):
    """A whole sweep file of another tool; its fields are that file's keys.

    ``tool`` is the name of the tool in messages.
    """

    tool: ClassVar[str]

    @classmethod
    @abstractmethod
    def own_keys(cls, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys of a raw file that no other tool's files have; none: it is no such file.
        """

    @abstractmethod
    def translated(self) -> dict[str, Any]:
        """Return the same sweep as a raw mapping of ours.

        Its ``notes`` say, one line each, what could not be carried over.
        """
