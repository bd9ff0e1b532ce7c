"""The tools whose sweep files are read as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbench.config.dialects.ddlb import DdlbFile
from hpcbench.config.dialects.dialect import Dialect

DIALECTS: tuple[type[Dialect], ...] = (DdlbFile,)


def dialect_of(raw: Mapping[str, Any]) -> type[Dialect] | None:
    """Return the class of the tool's files that a raw mapping is one of; None: it is ours."""
    return next((dialect for dialect in DIALECTS if dialect.recognises(raw)), None)
