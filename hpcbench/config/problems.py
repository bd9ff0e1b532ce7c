"""What is wrong with a sweep file, in the words of the file: one line per problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hpcbench.config.axes import YAML_SWITCHES, nearest, quote
from hpcbench.config.dialects.dialect import Dialect
from hpcbench.config.schema import Config, block_classes, kind_named
from hpcbench.config.section import Block
from hpcbench.kinds.registry import kinds
from hpcbench.texts import is_valid, to_json, valid

Location = tuple[int | str, ...]

_WANTED: Mapping[str, str] = {
    "int_type": "must be a whole number", "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number", "float_type": "must be a number",
    "finite_number": "must be a finite number", "bool_type": "must be true or false",
    "string_type": "must be text", "string_too_short": "must not be empty",
    "string_too_long": "must be shorter", "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys", "dict_type": "must be a mapping of keys",
    "string_pattern_mismatch": "must be 1 to 64 letters, digits and . _ -, "
                               "beginning with a letter or digit",
    "greater_than": "must be greater than {gt:g}", "less_than_equal": "must be at most {le:g}",
    "greater_than_equal": "must be at least {ge:g}",
}


def problems(
    error: ValidationError, raw: Any, root: type[BaseModel] = Config,
) -> list[tuple[str, str]]:
    """Return (key path, message) of every problem pydantic found in a raw mapping of a ``root``."""
    details = error.errors(include_url=False)
    unknown = {item["loc"][1] for item in details if _is_unknown_kind(item)}
    # that a list is too short follows from what is reported for its items
    told = [item for item in details if not (item["type"] == "too_short" and item["input"]) and (
        _is_unknown_kind(item) or _block(item["loc"]) not in unknown)]
    return [(key_path(_in_file(item["loc"]), raw), _message(item, root)) for item in told]


def names_in_blocks(error: ValidationError, raw: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, message) of each name that nothing has, in blocks that are right but for that."""
    refused = [item["loc"] for item in error.errors(include_url=False)]
    blocks = raw.get("benchmarks") if isinstance(raw, Mapping) else None
    for number, given in enumerate(blocks if isinstance(blocks, list) else ()):
        if not isinstance(given, Mapping):
            continue
        bad = {location[3] for location in refused
               if location[:2] == ("benchmarks", number) and len(location) > 3}
        kind = kind_named(given.get("kind"))
        if kind not in kinds():
            continue
        kept = {name: value for name, value in given.items() if name not in bad}
        try:
            block = block_classes()[kind].model_validate_json(to_json(kept, default=str))
        except ValidationError:
            continue
        for problem in kinds()[kind].planner().problems(block):
            yield "benchmarks", f"{block.name or f'{kind}-{number + 1}'}: {problem}"


def half_characters(raw: Any) -> Iterator[tuple[str, str]]:
    """Yield (key path, message) of every text with half of a surrogate pair, which JSON allows."""
    for location, text in _texts(raw, ()):
        if not is_valid(text):
            yield valid(key_path(location, raw)), (
                f'"{valid(text)}" has half of a surrogate pair, which is no character: write the '
                "character itself, or both halves")


def _texts(value: Any, where: Location) -> Iterator[tuple[Location, str]]:
    """Yield every text in JSON values and where it is; a key is where its mapping is."""
    if isinstance(value, str):
        yield where, value
    parts = value.items() if isinstance(value, Mapping) else enumerate(
        value if isinstance(value, (list, tuple)) else ())
    for name, part in parts:
        if isinstance(name, str):
            yield where, name
        yield from _texts(part, (*where, name))


def _is_unknown_kind(item: ErrorDetails) -> bool:
    return (_block(item["loc"]) is not None and item["loc"][3:] == ("kind",)
            and item["type"] != "missing")


def _block(location: Location) -> int | str | None:
    """Return the number of the block that a location lies in, or None."""
    return location[1] if location[:1] == ("benchmarks",) and len(location) > 2 else None


def _in_file(location: Location) -> Location:
    """Return a location without the kind that pydantic puts behind a block's number."""
    return location[:2] + location[3:] if location[:1] == ("benchmarks",) else location


def key_path(location: Iterable[int | str], raw: Any) -> str:
    """Return ``benchmarks[0].size`` for a location; the index of a lone value is left out."""
    path = ""
    for part in location:
        if isinstance(part, str) and part != "[key]":
            name = part if part.isprintable() else quote(part)
            path += f".{name}" if path else name
            raw = raw.get(part) if isinstance(raw, Mapping) else None
        elif isinstance(part, int) and isinstance(raw, list):
            path += f"[{part}]"
            raw = raw[part] if part < len(raw) else None
    return path


def _message(item: ErrorDetails, root: type[BaseModel]) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        return _unknown_key(item["loc"], root)
    if kind == "missing":
        return _missing_key(item["loc"], root)
    if kind == "too_short":
        return "the list is empty; give at least one value"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind in _WANTED:
        wanted = _WANTED[kind].format(**item.get("ctx", {}))
        read = kind == "string_type" and isinstance(item["input"], bool)
        return f"{wanted}, not {quote(item['input'])}" + f"; {YAML_SWITCHES}" * read
    return item["msg"]


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return a section's keys as they are written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _section(location: Location, root: type[BaseModel]) -> type[BaseModel]:
    if len(location) == 1:
        return root
    if location[0] == "benchmarks" and len(location) > 2:
        return block_classes()[str(location[2])]
    return _sections(root)[str(location[0])]


def _sections(root: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the sections of a file, without its blocks; none has a section within it."""
    return {key: part for key, field in zip(keys_of(root), root.model_fields.values(), strict=True)
            for part in (field.annotation, *get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, BaseModel)
            and not issubclass(part, Block)}


def _unknown_key(location: Location, root: type[BaseModel]) -> str:
    key, allowed = str(location[-1]), keys_of(_section(location, root))
    if issubclass(root, Dialect):
        return (f"unknown key of a file of {root.tool};{_guess(key, allowed)} "
                f"allowed: {', '.join(allowed)}")
    sections = [name for name, model in _sections(Config).items() if key in keys_of(model)]
    kinds = [kind for kind, model in block_classes().items() if key in keys_of(model)]
    if kinds:
        sections.append("benchmarks" if _block(location) is None else
                        f"blocks of kind {' or '.join(kinds)}")
    hint = _guess(key, allowed) or (f" it belongs to {' or '.join(sections)};" if sections else "")
    return f"unknown key;{hint} allowed: {', '.join(allowed)}"


def _guess(key: str, allowed: Iterable[str]) -> str:
    guess = nearest(key, allowed)
    return f' did you mean "{guess}"?' if guess else ""


def _missing_key(location: Location, root: type[BaseModel]) -> str:
    key = str(location[-1])
    fields = _section(location, root).model_fields.items()
    about = [field.description for name, field in fields if key == (field.alias or name)]
    if not about or not about[0]:
        return "the key is missing"
    return f"the key is missing; it holds {about[0][0].lower()}{about[0][1:].rstrip('.')}"
