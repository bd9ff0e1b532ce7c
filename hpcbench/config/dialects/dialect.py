"""What another tool's sweep file is: how one is recognised, its keys, and the same in ours."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hpcbench.config.section import Section


class Dialect(Section):
    """A whole sweep file of another tool; its fields are that file's keys.

    ``tool`` is the name of the tool in messages.
    """

    tool: ClassVar[str]

    @classmethod
    @abstractmethod
    def recognises(cls, raw: Mapping[str, Any]) -> bool:
        """Return whether a raw mapping is a sweep file of this tool, right or wrong."""

    @abstractmethod
    def translated(self) -> dict[str, Any]:
        """Return the same sweep as a raw mapping of ours.

        Its ``notes`` say, one line each, what could not be carried over.
        """
