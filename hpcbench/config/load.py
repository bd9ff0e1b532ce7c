"""Find, read, override and check a sweep file, also of other tools; report all errors together.

Results that are given as a sweep file by mistake are recognised, with the command that reads them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from hpcbench.config.axes import as_tuple, quote
from hpcbench.config.schema import (
    BLOCKS,
    Config,
    Hardware,
    Origin,
    class_of_file,
    config_class,
    half_characters,
    kind_named,
    names_in_blocks,
    problems,
    secrets_in,
)
from hpcbench.config.section import Dialect, Replaceable
from hpcbench.config.yaml_text import from_yaml, unique
from hpcbench.errors import ConfigError, FileError, command_line
from hpcbench.kinds.registry import kinds
from hpcbench.operations.gpu_nodes import has_gpu
from hpcbench.registry import DialectSpec, offered
from hpcbench.texts import holds_halves, valid
from hpcbench.units import shortened


def dialect_of(raw: Mapping[str, Any]) -> type[Dialect] | None:
    """Return the class of the tool's files that a raw mapping is one of; None: it is ours.

    Raises ConfigError, without the file's name, if the mapping has keys of several tools."""
    specs = offered(DialectSpec).values()
    able: list[type[Dialect]] = [one.load() for one in specs if not raw.keys().isdisjoint(one.keys)]
    matching = {dialect: keys for dialect in able if (keys := dialect.own_keys(raw))}
    owners = {dialect.tool: keys for dialect, keys in matching.items()}
    if "benchmarks" in raw:
        owners["hpcbench"] = ("benchmarks",)
    if matching and len(owners) > 1:
        each = " and of ".join(f"{tool} ({', '.join(keys)})" for tool, keys in owners.items())
        raise ConfigError(f"has keys of {each}; a file is of one tool: keep the keys of one, and "
                          "write the others to a file of their own")
    return next(iter(matching), None)


def add_own_block(raw: dict[str, Any], named: object) -> None:
    """Add the block that a kind offers (`Block.own`), and a note, where a raw file has none."""
    kind, blocks = kind_named(named), raw.get("benchmarks")
    owner = BLOCKS.get(kind)
    if owner is None or not owner.own or not isinstance(blocks, list):
        return
    if kind in (kind_named(block.get("kind")) for block in blocks if isinstance(block, Mapping)):
        return
    raw["benchmarks"] = [*blocks, {"kind": kind, "name": f"own-{kind}", **owner.own}]
    raw["notes"] = [*as_tuple(raw.get("notes", ())),
                    f"the file has no block of kind {kind}: its default block is run"]


REPLACING = ("model", "strategy")
"""Keys of the file, and flags, whose names take the place of those in blocks."""


def replace_names(raw: dict[str, Any], by: str) -> None:
    """Put the names that a raw file has under ``by`` in place of those in its blocks.

    A block that names them all keeps its other names no longer, and everything else. In other
    blocks the keys that described what was named are left out, too. Each such block gets a line in
    ``notes``. Values that are no names are left to the check of the file."""
    names, blocks = as_tuple(raw.get(by, ())), raw.get("benchmarks")
    named = names and all(isinstance(name, str) for name in names)
    if not named or not isinstance(blocks, list):
        return
    notes = []
    for number, block in enumerate(blocks):
        if place := _place_of_key(block, by):
            notes += [f"benchmarks[{number}]: {line}" for line in _replace(block, place, names)]
    if notes:
        raw["notes"] = [*as_tuple(raw.get("notes", ())), *notes]


def _place_of_key(block: Any, by: str) -> Replaceable | None:
    """Return where a raw block has such names; None where its kind has none, or is unknown."""
    owner = BLOCKS.get(kind_named(block.get("kind"))) if isinstance(
        block, Mapping) else None
    place = owner.replaceable.get(by) if owner else None
    return place if place and place.key in block else None


def _replace(block: dict[str, Any], place: Replaceable, names: tuple[str, ...]) -> Iterator[str]:
    """Replace the names of one block; yield a line on the change, with what is lost by it."""
    content = block[place.key]
    with_options = isinstance(content, Mapping)
    before = [str(name) for name in (content if with_options else as_tuple(content))]
    block[place.key] = ({name: content.get(name, {}) for name in names} if with_options
                        else list(names))
    if set(names) <= set(before):
        return
    meaningless = (key for key, lacking in place.lacking.items() if lacking.issuperset(names))
    described = [(key, block.pop(key, None)) for key in (*place.described_by, *meaningless)]
    lost = [f"{key} {value}" for key, value in described if value is not None]
    yield (f"{place.key} {', '.join(names)} instead of {', '.join(before)}"
           + (f"; dropped: {', '.join(lost)}" if lost else ""))[:500]


_SEALED = re.compile(rb"(?:\x89HDF.{,4000}?)?format (hpcbench-[a-z]+)\n", re.DOTALL)
"""How files of hpcbench begin that `trace.container` seals."""
_JOURNAL = b"\x89HBJ\r\n\x1a\n"
"""How journals of hpcbench begin (`trace.journal`)."""
_CSV = b"case_id,"
"""How ``summary.csv`` begins (`report.summary`)."""
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEAD_BYTES = 4096
_CHROME = "a Chrome trace of a profiler"
_SUMMARY = "the summary of a run"
_SUMMARY_SCHEMA = "hpcbench.summary"
_PRINTED = "hpcbench."
"""How ``schema`` begins in what commands print as JSON, and in the file of a suite."""
_FOREIGN = "hpcbench reads its own results only; give the config that they were made from"
_OWN = MappingProxyType({"hpcbench-results": "the results of a run", "hpcbench-trace": "a trace"})


def results_in_bytes(data: bytes, file: Path) -> str | None:
    """Return which results a binary file holds and how to read them, or None."""
    if match := _SEALED.match(data):
        kind = match[1].decode()
        folder = file if kind == "hpcbench-results" else _run_of(file)
        return _line(_OWN.get(kind, "a file of a run"), _how(folder))
    if data.startswith(_JOURNAL):
        return _line("the journal of a run",
                     f"{command_line('reduce', _run_of(file))} makes results of it")
    if data.startswith(_CSV):
        return _line("the table of cases of a run", _how(file.parent))
    if data.startswith(_HDF5):
        return _line("an HDF5 file", "give a JSON or YAML sweep file")
    return None


def results_in_head(file: Path) -> str | None:
    """Return the same of a file that is too large to be parsed, by how it begins; None: unknown."""
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return None
    if b'"traceEvents"' in head:
        return _line(_CHROME, _FOREIGN)
    if b'"hpcbench.summary"' in head:
        return _line(_SUMMARY, _how(file.parent))
    return results_in_bytes(head, file)


def results_in(data: Any, file: Path) -> str | None:
    """Return which results a parsed file holds and how to read them, or None."""
    first = data[0] if isinstance(data, list) and data else data
    if not isinstance(first, Mapping) or "benchmarks" in first:
        return None
    schema = str(first.get("schema", ""))
    if schema.startswith(_PRINTED) and schema != _SUMMARY_SCHEMA:
        return _line(f"JSON of hpcbench {schema.removeprefix(_PRINTED)}",
                     "give a sweep file; hpcbench gen-config makes one")
    return next((_line(what, _how(file.parent) if own else _FOREIGN)
                 for what, own, has in _KNOWN if has(first)), None)


def _line(what: str, how: str) -> str:
    return f"looks like {what}, not a config; {how}"


def _how(place: Path) -> str:
    """Return the command that shows a run, and where its configuration is."""
    folder = place.parent if place.suffix == ".h5" else place
    return f"{command_line('show', place)} prints it, and {folder / 'config.json'} is its config"


def _run_of(trace: Path) -> Path:
    """Return the folder of the run to which a trace or journal belongs."""
    return trace.parent.parent if trace.parent.name == "traces" else trace.parent


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda data: set(names) <= data.keys()


_KNOWN: tuple[tuple[str, bool, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("the plan of a run", True, _has("plan_hash", "cases", "passes")),
    (_SUMMARY, True, lambda data: data.get("schema") == _SUMMARY_SCHEMA),
    ("results of nccl-tests (-J)", False, lambda data: "results" in data and bool(
        data.keys() & {"average_bus_bandwidth", "out_of_bounds", "nccl_version"})),
    (_CHROME, False,
     lambda data: "traceEvents" in data or {"ph", "ts"} <= data.keys()),
    ("results of a benchmark", False, _has("timestamp", "results")),
    ("results of a benchmark", False, _has("world_size", "results")),
)
"""The kind of data, whether it is hpcbench's own, and the test for it."""


PACKAGED = Path(__file__).with_name("default.json")
AnyFile = TypeVar("AnyFile", Config, Dialect)
_YAML = (".yaml", ".yml")
_MOST_BYTES = 4 * 2**20
"""Larger files are refused unread: of YAML this much takes a minute."""
_MOST_PROBLEMS = 20
"""Lines of an error: a screen, however long the list of wrong values is."""
_MOST_TEXT = 32 * 2**20
_OF_EVERY_CASE = {
    "measure.warmup": ("warmup",), "measure.iterations": ("iterations", "max_steps"),
    "measure.validate": ("validate",), "measure.mode": ("mode",)}
"""Key -> the keys of blocks that set the same for the block alone."""


def find_config(path: Path | None) -> Path:
    """Return the given path, else ./config.json, else the packaged one. Raises FileError."""
    if path is None:
        here = Path("config.json")
        return here if here.is_file() else PACKAGED
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise FileError(f"{shortened(str(path))}: {error.strerror}; give a JSON or YAML sweep "
                        "file") from None
    if size is None:
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileError(f"{path}: {what}; give a JSON or YAML sweep file")
    if size > _MOST_BYTES:
        if results := results_in_head(path):
            raise FileError(f"{path}: {results}")
        raise FileError(f"{path}: has {size:,} bytes, more than the {_MOST_BYTES:,} that a sweep "
                        "file can have; write lists of values instead of many blocks")
    return path


def load_config(path: Path | None, overrides: Sequence[tuple[str, object]] = ()) -> Config:
    """Return the checked configuration; overrides are (key path, value) and win over the file.

    An override of measure.warmup, .iterations, .validate or .mode holds for every block.
    Another tool's file is translated first: overrides are of our keys.
    Raises ConfigError that lists every problem, FileError if the file cannot be read."""
    file = find_config(path)
    raw, source = _in_our_keys(read_config(file), str(file))
    _fill_in_paths(raw, source)
    _place_beside(raw, file.parent)
    add_own_block(raw, dict(overrides).get("benchmark", raw.get("benchmark")))
    for key in REPLACING:
        replace_names(raw, key)
    overridden = []
    for key, value in overrides:
        overridden.append(_new_part(raw, key))
        _override(raw, key, value)
        if key in REPLACING:
            replace_names(raw, key)
    _fill_in_paths(raw, "command line")
    config = check_config(raw, source, overridden)
    return config.on_machine(native_backend(config.hardware, os.environ))


def native_backend(
    hardware: Hardware, environ: Mapping[str, str], root: Path = Path("/"),
) -> str:
    """Return the backend of blocks that name none: nccl where GPUs are declared, or are here for a
    torch that can use them; else gloo. It is asked before torch is there."""
    if hardware.device_type is not None:
        return "nccl" if hardware.device_type == "cuda" else "gloo"
    return "nccl" if has_gpu(environ, root) and not _torch_is_for_cpus() else "gloo"


def _torch_is_for_cpus() -> bool:
    try:
        return version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False


_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})")


def _fill_in_paths(raw: Mapping[str, Any], source: str) -> None:
    """Fill in ``~`` and variables of paths, as a shell would. Raises ConfigError for unknown ones.
    """
    places: list[tuple[str, Any, Sequence[str]]] = [("output", raw.get("output"), ("folder",))]
    blocks = raw.get("benchmarks")
    for number, block in enumerate(blocks if isinstance(blocks, list) else ()):
        owner = BLOCKS.get(kind_named(block.get("kind"))) if isinstance(
            block, dict) else None
        places.append((f"benchmarks[{number}]", block, owner.paths if owner else ()))
    for where, section, names in places:
        for name in names if isinstance(section, dict) else ():
            given, place = section.get(name), f"{source}: {where}.{name}"
            if isinstance(given, (str, list)):
                filled = [_filled_in(one, place) if isinstance(one, str) else one
                          for one in as_tuple(given)]
                section[name] = filled if isinstance(given, list) else filled[0]


def _filled_in(path: str, place: str) -> str:
    full = os.path.expandvars(os.path.expanduser(path))  # noqa: PTH111 (the path stays as it is)
    if full == path and Path(path).exists():
        return path
    unknown = _VARIABLE.search(full)
    if unknown or full.startswith("~"):
        raise ConfigError(f"{place}: {shortened(path)}: {unknown[0] if unknown else 'its home'} is "
                          "not known here; set it, or write the path out")
    return full


def _place_beside(raw: Mapping[str, Any], folder: Path) -> None:
    """Make the paths absolute that blocks have relative to the sweep file (`Block.beside`)."""
    blocks = raw.get("benchmarks")
    for block in blocks if isinstance(blocks, list) else ():
        owner = BLOCKS.get(kind_named(block.get("kind"))) if isinstance(
            block, dict) else None
        suffixes = {**dict.fromkeys(owner.beside, ""), **owner.named_beside} if owner else {}
        for name, suffix in suffixes.items():
            given = block.get(name)
            if isinstance(given, (str, list)):
                placed = [str((folder / one).absolute()) if isinstance(one, str)
                          and one.endswith(suffix) else one for one in as_tuple(given)]
                block[name] = placed if isinstance(given, list) else placed[0]


def _in_our_keys(raw: dict[str, Any], source: str) -> tuple[dict[str, Any], str]:
    """Return a raw mapping, translated if it is another tool's file, and what messages call it."""
    try:
        dialect = dialect_of(raw)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    if dialect is None:
        return raw, source
    translated = _checked(dialect, raw, Origin(source)).translated(Path(source).name)
    return translated, f"{source}, translated from {dialect.tool}'s keys"


def check_config(raw: Any, source: str, overridden: Sequence[str] = ()) -> Config:
    """Return the configuration in a mapping of ``source``. Raises ConfigError of all problems."""
    origin = Origin(source, tuple(overridden))
    return _checked(class_of_file(raw), raw, origin).from_origin(origin)


def _checked(root: type[AnyFile], raw: Any, origin: Origin) -> AnyFile:
    try:
        _refuse_bomb(raw)
        text = json.dumps(raw, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{origin.source}: cannot be written as JSON: {error}") from None
    if holds_halves(text) and (faults := [*half_characters(raw)]):
        raise _refused(origin, faults)
    try:
        checked = root.model_validate_json(text)
    except ValidationError as error:
        faults = problems(error, raw, root)
        if issubclass(root, Config):
            faults += dict.fromkeys(names_in_blocks(error, raw))
        raise _refused(origin, faults) from None
    if faults := [*secrets_in(raw, os.environ)]:
        raise _refused(origin, faults)
    return checked


def _refused(origin: Origin, found: Sequence[tuple[str, str]]) -> ConfigError:
    """Return the error of all problems of a file: a line each of the first ones, and a count."""
    lines = [origin.line(key, message) for key, message in found[:_MOST_PROBLEMS]]
    more = len(found) - _MOST_PROBLEMS
    return ConfigError(*lines, *[origin.line("", f"{more:,} more problems")] * (more > 0))


def _refuse_bomb(raw: Any) -> None:
    """Raise ValueError if few lines of YAML stand for much text, by aliases of aliases."""
    lengths: dict[int, int] = {}

    def length(value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, (dict, list)):
            return 1
        if id(value) not in lengths:
            lengths[id(value)] = 0  # of a circle, which JSON complains about
            items = [*value, *value.values()] if isinstance(value, dict) else value
            lengths[id(value)] = 2 + sum(map(length, items))
        return lengths[id(value)]

    if length(raw) > _MOST_TEXT:
        raise ValueError(f"its aliases (*name) stand for more than {_MOST_TEXT:,} characters; "
                         "write the values out, or fewer of them")


def read_config(file: Path) -> dict[str, Any]:
    """Return the mapping in a JSON or YAML file, unchecked. Raises FileError and ConfigError.

    A file that is a block of a kind (`Block.suffix`) is a sweep of that block."""
    for kind, owner in BLOCKS.items() if file.suffix not in (".json", *_YAML) else ():
        if owner.suffix and owner.suffix == file.suffix:
            name = re.sub(r"[^A-Za-z0-9._-]", "_", file.stem).lstrip("._-")[:64]
            return {"name": name or kind,
                    "benchmarks": [{"kind": kind, owner.beside[0]: file.name}]}
    try:
        content = file.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        what = results_in_bytes(content, file) or f"is not UTF-8 text (byte {error.start})"
        raise FileError(f"{file}: {what}") from error
    if results := results_in_bytes(content, file):
        raise FileError(f"{file}: {results}")
    data = parse_text(text, file)
    if file.suffix.lower() in _YAML and isinstance(data, dict):  # x-NAME: for anchors
        data = {key: value for key, value in data.items() if not str(key).startswith("x-")}
    if results := results_in(data, file):
        raise ConfigError(f"{file}: {results}")
    if isinstance(data, list) and data and all(isinstance(item, dict) for item in data):
        raise ConfigError(f"{file}: is a list of {len(data)} mappings, and a config is one; write "
                          "each to a file of its own")
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{file}: must be a mapping of keys; see docs/config.md")
    return data


def parse_text(text: str, file: Path) -> Any:
    """Return the value of a JSON or YAML text, the latter by the suffix of ``file``."""
    try:
        if file.suffix.lower() in _YAML:
            return from_yaml(text)
        return json.loads(text, object_pairs_hook=unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def parse_assignment(text: str) -> tuple[str, object]:
    """Return (key path, value) of ``a.b=50``: JSON, else text. Raises ConfigError."""
    key, equals, value = valid(text).partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(f'--set {text}: write key=value, as in --set measure.iterations=50')
    try:
        return key.strip(), json.loads(value, parse_constant=_no_constant)
    except ValueError:
        return key.strip(), value


def _override(raw: dict[str, Any], key: str, value: object) -> None:
    """Set one key of the raw mapping; keys in `_OF_EVERY_CASE` win over those of blocks."""
    *parents, last = key.split(".")
    target: Any = raw
    for depth, part in enumerate(parents):
        place = _place(target, part, ".".join(parents[:depth]))
        target = target.setdefault(part, {}) if isinstance(target, dict) else target[place]
    target[_place(target, last, ".".join(parents))] = value
    blocks = raw.get("benchmarks")
    if key in _OF_EVERY_CASE and isinstance(blocks, list):
        for block in (item for item in blocks if isinstance(item, dict)):
            for own in _OF_EVERY_CASE[key]:
                block.pop(own, None)


def _new_part(raw: Any, key: str) -> str:
    """Return the first part of a key path that a mapping lacks; all of it if it lacks none."""
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if isinstance(raw, list) and part.isdecimal() and int(part) < len(raw):
            raw = raw[int(part)]
        elif not isinstance(raw, dict):
            return key
        elif part not in raw:
            return ".".join(parts[:depth + 1])
        else:
            raw = raw[part]
    return key


def _place(target: Any, part: str, where: str) -> Any:
    """Return the key in a mapping, or the position in a list, that part of a key path names."""
    if isinstance(target, dict):
        return part
    if not isinstance(target, list):
        raise ConfigError(f"command line: {where}: has no keys, so {part} cannot be set")
    if not part.isdecimal() or int(part) >= len(target):
        raise ConfigError(f'command line: {where}: "{part}" is no position in it; '
                          f"it has {len(target)}, counted from 0")
    return int(part)


def json_schema() -> str:
    """Return the JSON Schema of the sweep file, as text; docs/config.schema.json is this."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema",
              **config_class(tuple(kinds())).model_json_schema(by_alias=True)}
    return json.dumps(schema, indent=2)


def source_lines(path: Path | None, overrides: Sequence[tuple[str, object]]) -> Iterator[str]:
    """Yield which sweep file is read, and each override. Raises FileError as `find_config` does."""
    file = find_config(path)
    why = ("as given" if path is not None else
           "packaged: there is no ./config.json" if file == PACKAGED else "of this folder")
    yield f"sweep file: {file.absolute()} ({why})"
    for key, value in overrides:
        yield f"override: {key} = {quote(value)}"
