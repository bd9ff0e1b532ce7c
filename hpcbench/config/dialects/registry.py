"""The tools whose sweep files are read as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbench.config.dialects.candle import CandleFile
from hpcbench.config.dialects.ddlb import DdlbFile
from hpcbench.config.dialects.dialect import Dialect
from hpcbench.config.dialects.torchscale import TorchScaleFile
from hpcbench.errors import ConfigError

DIALECTS: tuple[type[Dialect], ...] = (DdlbFile, TorchScaleFile, CandleFile)


def dialect_of(raw: Mapping[str, Any]) -> type[Dialect] | None:
    """Return the class of the tool's files that a raw mapping is one of; None: it is ours.

    Raises ConfigError, without the file's name, if the mapping has keys of several tools.
    """
    found = {dialect: keys for dialect in DIALECTS if (keys := dialect.own_keys(raw))}
    owners = {dialect.tool: keys for dialect, keys in found.items()}
    if "benchmarks" in raw:
        owners["hpcbench"] = ("benchmarks",)
    if found and len(owners) > 1:
        each = " and of ".join(f"{tool} ({', '.join(keys)})" for tool, keys in owners.items())
        raise ConfigError(f"has keys of {each}; a file is of one tool: keep the keys of one, and "
                          "write the others to a file of their own")
    return next(iter(found), None)
