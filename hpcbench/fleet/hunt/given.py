"""What a hunt is to compare with, read once from the files of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hpcbench.config.load import read_config
from hpcbench.config.schema import Hardware
from hpcbench.errors import NOT_AS_WRITTEN, FileError
from hpcbench.fleet.hunt.facts import GOOD, MEASURES, NOT_TESTED, Fact
from hpcbench.fleet.hunt.limits import HuntLimits, Like, Row, reference_of
from hpcbench.texts import from_json
from hpcbench.units import parse_bytes

_MOST_BYTES = 1 << 30


class _Minimum(BaseModel):
    """A row of ``--minimum``."""

    model_config = ConfigDict(extra="forbid")
    collective: str
    ranks: Annotated[int, Field(ge=1)]
    size: str | int
    gb_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]


_MINIMA = TypeAdapter(list[_Minimum])
_FACTS = TypeAdapter(list[Fact])


def limits_of(
    expected: Path | None, minimum: Path | None, reference: Path | None,
    vouched: Sequence[str] = (),
) -> HuntLimits:
    """Return what the files say, all None for none. Raises FileError with file, place, remedy.

    ``vouched``: nodes of the reference that are good by the user's word, where it could not tell.
    """
    return HuntLimits(_devices(expected) if expected else None,
                      _reference(reference, vouched) if reference else {},
                      _minima(minimum) if minimum else {}, tuple(vouched))


def _devices(file: Path) -> int:
    """Return the devices of a node, of a sweep file or of its section ``hardware`` alone."""
    content = read_config(file)
    section = content.get("hardware", content)
    try:
        count = Hardware.model_validate(section).num_devices
    except ValidationError as error:
        raise FileError(f"{file}: hardware.{_first(error)}") from error
    if count is None:
        raise FileError(f"{file}: hardware.num_devices is not given: write how many GPUs, or "
                        "cores of a node without any, a node has")
    return count


def _minima(file: Path) -> dict[Row, float]:
    content = read_config(file)
    rows = content.get("minimum")
    try:
        minima = _MINIMA.validate_python(rows)
    except ValidationError as error:
        raise FileError(f"{file}: minimum{_first(error)}; write minimum: [{{collective: "
                        "all_reduce, ranks: 16, size: 64MiB, gb_per_s: 40}]") from error
    for number, one in enumerate(minima):
        if one.collective not in MEASURES:
            raise FileError(f"{file}: minimum[{number}].collective: {one.collective[:40]!r} is not "
                            "measured by a hunt")
    return {(one.collective, one.ranks, _bytes(file, one.size)): one.gb_per_s * 1e9
            for one in minima}


def _bytes(file: Path, size: str | int) -> int:
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise FileError(f"{file}: minimum: {error}") from error


def _first(error: ValidationError) -> str:
    """Return the place of the first problem, and what it is."""
    problem = error.errors()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}"
                    for part in problem["loc"])
    return f"{place.removeprefix('.')}: {problem['msg'][:120]}"


def _reference(file: Path, vouched: Sequence[str]) -> dict[Like, float]:
    """Return the usual values of good and of vouched nodes in a hunt.json."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise FileError(f"{file}: is too large for the hunt.json of an earlier hunt")
        document: Any = from_json(file.read_bytes())
        verdicts = {str(one["node"]): one["verdict"] for one in document["verdicts"]}
        facts = _FACTS.validate_python(document["facts"])
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from error
    except (*NOT_AS_WRITTEN, ValidationError) as error:
        raise FileError(f"{file}: is no hunt.json of an earlier hunt") from error
    for name in vouched:
        if verdicts.get(name) not in (GOOD, NOT_TESTED):
            raise FileError(f"{file}: --vouch {name}: it was {verdicts.get(name, 'not')} in that "
                            "hunt; vouch for nodes that it could not judge")
    good = [name for name, verdict in verdicts.items() if verdict == GOOD or name in vouched]
    if not good:
        raise FileError(f"{file}: no node was good in that hunt: nothing can be compared with it; "
                        "--vouch NODE names one that is good by your word")
    return reference_of((fact for fact in facts if fact.measure in MEASURES), good)
