"""A file of limits: what results must reach, as data; every problem of it is one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from hpcbench.config.limit import Limit
from hpcbench.config.section import Section
from hpcbench.errors import ConfigError, FileError

MOST_BYTES = 2**22
class Limits(Section):
    """A whole file of limits."""

    limits: Annotated[tuple[Limit, ...], Field(min_length=1)]


def read_limits(path: Path) -> Limits:
    """Return the limits of a YAML or JSON file. Raises FileError or ConfigError, a line a problem.
    """
    import yaml  # reports of runs need the types of this module only

    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileError(f"{path}: more than {MOST_BYTES:,} bytes is no file of limits")
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise FileError(f"{path}: is no YAML that can be read: too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # a date or a number that is none; no UTF-8
        raise FileError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None
    return checked_limits(raw, str(path))


def checked_limits(raw: Any, name: str) -> Limits:
    """Return checked limits. Raises ConfigError with every problem, each with the file's name."""
    if not isinstance(raw, Mapping) or set(raw) != {"limits"} or not isinstance(
            raw["limits"], list):
        raise ConfigError(f'{name}: must be a mapping with one key, "limits", which is a list')
    try:
        return Limits(limits=tuple(_checked(item, at, name) for at, item in
                                   enumerate(raw["limits"])))
    except ValidationError:
        raise ConfigError(f"{name}: limits is empty; give at least one") from None


def _checked(item: Any, at: int, name: str) -> Limit:
    try:
        return Limit.model_validate(item)
    except ValidationError as error:
        raise ConfigError("\n".join(
            f"{name}: limits[{at}]{''.join(f'.{part}' for part in found['loc'])}: "
            f"{found['msg']}" for found in error.errors(include_url=False))) from None
