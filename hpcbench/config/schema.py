"""The sweep file as frozen, typed, range-checked objects; every key with its meaning.

Below them: the problems of a file, in the words of the file, one line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from hpcbench.config import axes
from hpcbench.config.section import (
    NAME_PATTERN,
    Below,
    Benchmark,
    Block,
    Count,
    DeviceType,
    Dialect,
    Fault,
    Limit,
    Mode,
    Order,
    PeakType,
    PollInterval,
    Positive,
    Profiler,
    Requirable,
    Section,
    Target,
    Text,
    Timeout,
    Trigger,
    Unread,
    UnusableBlock,
    Warmup,
    key,
)
from hpcbench.errors import ConfigError, PluginError
from hpcbench.kinds.registry import KindSpec, kind_aliases, kinds, spec_of
from hpcbench.records import dataclass
from hpcbench.texts import is_valid, masker, to_json, valid

_LONGEST_KEY = 200


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of a file, and the key paths that the command line gives instead of it.

    All origins are equal: configurations are the same if their keys are."""

    source: str = field(default="", compare=False)
    overridden: tuple[str, ...] = field(default=(), compare=False)

    def line(self, key: str, message: str) -> str:
        """Return the message on a key behind the place that gave it: ``place: key: message``."""
        where = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}..."
        return ": ".join([part for part in (self._place(key), where) if part] + [message])

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the place that gave the key before each line of a ConfigError: ``key: message``."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError(*(self.line(*_divided(line)) for line in error.args)) from None

    def _place(self, key: str) -> str:
        dotted = key.replace("[", ".").replace("]", "")
        is_set = any(dotted == path or dotted.startswith(f"{path}.") for path in self.overridden)
        return "command line" if is_set else self.source


def _divided(line: str) -> tuple[str, str]:
    key, colon, message = line.partition(": ")
    return (key, message) if colon else ("", line)


Texts = Annotated[tuple[Text, ...], axes.OneOrMany()]


class Hardware(Section):
    """The machine. The first three are detected where left out; the others stay unknown."""

    device_type: DeviceType | None = key(None, "cpu, cuda or mps.")
    num_devices: Annotated[int, Field(ge=1)] | None = key(
        None, "GPUs of a node: so many ranks need no network in the estimate.")
    memory_per_device_gb: Positive | None = key(
        None, "GB (1e9 B) of memory a rank may use; larger cases are skipped.")
    interconnect: Text | None = key(
        None, "Name shown beside bandwidths: nvlink, pcie, ...; nvlink4, pcie5, hdr and so on "
        "declare the link's rate, too.")
    network_bandwidth_gbps: Positive | None = key(
        None, "Gbit/s of a node's network in one direction, as adapters are rated.")
    memory_bandwidth_gb_per_s: Positive | None = key(
        None, "GB/s (1e9 B/s) of one device's memory, reads and writes together.")
    peak_flops: dict[PeakType, Positive] = key(
        {}, "dtype -> peak FLOP/s of one device; also tf32, int8, and fp8 for both its formats.")
    link_peaks: dict[str, Positive] = key({}, "Link name -> peak GB/s (1e9 B/s) in one direction.")
    price_per_device_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = key(
        None, "Price of one device (of a rank) for one hour.")
    currency: Text | None = key(None, "Currency of the price, such as EUR; shown beside costs.")


class Launch(Section):
    """How workers are started, limited and given up on."""

    timeout_s: Timeout = key(60.0, "Time limit of a case, in seconds.")
    init_timeout_s: Timeout = key(
        60.0, "Time limit of the start of MPI, then of workers, in seconds.")
    poll_interval_s: PollInterval = key(
        0.2, "Seconds between a supervisor's checks of a running case.")
    pass_env: Texts = key(
        (), "Shell patterns of further environment variables that workers inherit.")
    address: Text | None = key(
        None, "Name or address on which workers reach rank 0; default: launch.interface's, else "
        "loopback on one node, else that of rank 0's host name.")
    interface: Text | None = key(
        None, "Network interface of gloo and nccl's sockets, such as eth0.")
    port: axes.Ports = key((0, 0), "Port on rank 0: 0 for any free one, a number, or {from, to}.")
    memory_limit_gb: Annotated[float, Field(gt=0, le=1e6)] | None = key(
        None, "GB of data memory (RLIMIT_DATA) of a worker.")
    inline: bool = key(False, "Run the worker in the MPI process, for a debugger.")
    allow_mixed: bool = key(False, "Accept ranks whose software versions differ.")

    @property
    def memory_limit_bytes(self) -> int:
        return int((self.memory_limit_gb or 0) * 1e9)


class Measure(Section):
    """How each case is measured, unless its block says otherwise."""

    warmup: Warmup = key(5, "Samples before the timed ones (pipelined: of batch calls).")
    iterations: axes.Iterations = key(
        "auto", "Timed iterations of each pass; auto: until precise enough.")
    min_iterations: Count = key(7, "auto: least iterations of a pass.")
    max_iterations: Count = key(10_000, "auto: most iterations of a pass.")
    precision: Annotated[float, Field(gt=0, lt=1)] = key(
        0.01, "auto: half-width of the median's 99 % interval, relative.")
    budget_s: Positive = key(30.0, "auto: seconds for the timed loops of the whole job.")
    check: axes.CheckAxis = key(
        axes.CHECKED, "Check results: true (or ends) the first, the last and some between; every; "
        "N: N more calls; false.", alias="validate",
        json_schema_extra={"default": axes.CHECKED.plain})
    mode: Mode = key("isolated", "How an iteration starts.")
    batch: Annotated[int, Field(ge=1, le=100_000)] = key(
        20, "Calls of one sample in mode pipelined.")
    passes: Annotated[int, Field(ge=1, le=1000)] = key(
        3, "Passes over all cases, with the same workers.")
    launches: Annotated[int, Field(ge=1, le=1000)] = key(
        1, "Independent repetitions of all passes, with fresh workers.")
    order: Order = key("shuffled", "Order of cases that share workers.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = key(0, "Seed of the shuffled order.")
    canary: bool = key(True, "Measure a small all_reduce from time to time, to detect drift.")
    noise_check_s: Annotated[float, Field(ge=0, le=60)] = key(
        0.5, "Seconds of checking each core's noise before the run; 0: off.")
    clock_sync_s: Annotated[float, Field(gt=0, le=3600)] = key(
        30.0, "Seconds between synchronisations of several nodes' clocks.")

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Measure:
        if self.min_iterations > self.max_iterations:
            raise PydanticCustomError(
                "iteration_bounds",
                "min_iterations {least} is more than max_iterations {most}",
                {"least": self.min_iterations, "most": self.max_iterations})
        return self


class Profiling(Section):
    """Whether cases are profiled beside being measured: samples of their own, no statistics."""

    enabled: bool = key(False, "Profile cases once they are measured.")
    tool: Profiler = key("torch", "Who records: torch, nsys, or none for the stamps alone.")
    trigger: Trigger = key(
        "always", "Which cases: always for all, sync_stalls for those whose ranks wait.")
    samples: Annotated[int, Field(ge=1, le=100)] = key(3, "Profiled samples of each case.")
    target: Target | None = key(
        None, "Run only cases that show it: sync_stalls, compute or communication.")


class Telemetry(Section):
    """What supervisors read of the machine while workers measure."""

    rate_hz: Annotated[float, Field(ge=1, le=10)] = key(2.0, "Readings a second.")
    without: Annotated[tuple[Unread, ...], axes.OneOrMany()] = key(
        (), "Sources to leave out: process, cpu, frequency, energy, network, gpu; or all.")


class Output(Section):
    """Where results go."""

    folder: Text = key("results", "Folder that gets one folder per run.")
    plots: bool = key(True, "Draw the plots at the end of the run.")
    report: bool = key(True, "Write report.html at the end of the run.")


class _Blocks(Mapping[str, type[Block]]):
    """The class of the blocks of each kind that is installed, imported when it is asked for."""

    def __getitem__(self, name: str) -> type[Block]:
        return _block_class(kinds()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(kinds())

    def __len__(self) -> int:
        return len(kinds())


BLOCKS: Mapping[str, type[Block]] = _Blocks()


@cache
def _block_class(spec: KindSpec) -> type[Block]:
    try:
        return spec.block_class()  # type: ignore[no-any-return]
    except PluginError:
        return UnusableBlock


def kind_named(name: object) -> str:
    """Return the kind that a name, or another name of it, stands for; other names as they are."""
    return kind_aliases().get(str(name), str(name))


def _kind_of(value: Any) -> str:
    """Return the tag of a raw block; the first kind reports the problem of an unknown one."""
    kind = kind_named(value.get("kind") if isinstance(value, Mapping)
                      else getattr(value, "kind", None))
    return kind if kind in kinds() else next(iter(kinds()))


class Config(Section):
    """A whole sweep file. A stored plan keeps it without blocks: the plan has the cases."""

    schema_: str | None = key(None, "For editors; ignored.", alias="$schema", exclude=True)
    name: Annotated[str, Field(pattern=NAME_PATTERN)] = key(
        "default", "Name of the results folder: letters, digits and . _ -")
    benchmark: Benchmark | None = key(
        None, "Run only the blocks of this kind. scaling: collectives and trainings, each on 1, 2, "
        "4 ... and all ranks.")
    notes: Texts = key((), "Lines for people, printed with the plan and kept with it.")
    title: Text | None = key(None, "A line above the tables of results.")
    only: Texts | None = key(
        None, "Run only cases whose label has one of these texts, or matches one as a pattern.")
    exclude: Texts | None = key(None, "Exclude cases whose label matches one of these, as in only.")
    model: Texts = key((), "Run only trainings, of these models instead of those in blocks.")
    strategy: Texts = key(
        (), "Run only trainings, with these strategies instead of those in blocks.")
    required_backends: Annotated[tuple[Requirable, ...], axes.OneOrMany()] = key(
        (), "Fail where one is missing: names as backend has them, cuda or mps.")
    hardware: Hardware = Hardware.model_construct()
    launch: Launch = Launch.model_construct()
    measure: Measure = Measure.model_construct()
    profiling: Profiling = Profiling.model_construct()
    telemetry: Telemetry = Telemetry.model_construct()
    output: Output = Output.model_construct()
    benchmarks: tuple[Block, ...] = key((), "The sweeps, in order.")
    limits: tuple[Limit, ...] = key(
        (), "Limits of results, as in a file of limits (docs/compare.md); exit code 1 if missed.")
    fail_below: Annotated[tuple[Below, ...], axes.OneOrMany()] = key(
        (), "Least rates in short: NAME[:SIZE]:METRIC=VALUE[UNIT].")
    fault: tuple[Fault, ...] = key((), "Errors made on purpose. For testing only.")
    _origin: Origin = PrivateAttr(default=Origin())

    @model_validator(mode="after")
    def _block_names_differ(self) -> Config:
        named_blocks = [block.name for block in self.benchmarks if block.name]
        twice = sorted({name for name in named_blocks if named_blocks.count(name) > 1})
        if twice:
            raise PydanticCustomError(
                "block_names", 'benchmarks: two blocks have the name "{name}"; names must differ',
                {"name": twice[0]})
        return self

    @property
    def origin(self) -> Origin:
        """Return the origin of the keys, which messages about them name."""
        return self._origin

    def from_origin(self, origin: Origin) -> Config:
        """Return the same configuration with this origin."""
        copy = self.model_copy()
        copy._origin = origin
        return copy

    def on_machine(self, backend: str) -> Config:
        """Return it with this backend in blocks that name none."""
        if backend == "gloo":  # as the blocks have it
            return self
        return self.model_copy(update={"benchmarks": tuple(
            block.model_copy(update={"backend": (backend,)} if block.takes_native_backend else {})
            for block in self.benchmarks)})

    def plain(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values, in the spelling of the file."""
        return self.model_dump(mode="json", by_alias=True)


def class_of_file(raw: Any) -> type[Config]:
    """Return the class of a raw file, with the kinds of its blocks: others are not imported."""
    blocks = raw.get("benchmarks") if isinstance(raw, Mapping) else None
    return config_class(tuple(sorted({*map(_kind_of, blocks if isinstance(blocks, list) else ())})))


@cache
def config_class(names: tuple[str, ...]) -> type[Config]:
    """Return the class of sweep files whose blocks are of the kinds with these names."""
    tagged: dict[str, type[Block]] = {name: BLOCKS[name] for name in names}
    tagged |= dict.fromkeys(" -"[len(names):], UnusableBlock)  # pydantic asks for two
    members: list[Any] = [Annotated[block, Tag(name)] for name, block in tagged.items()]
    block: Any = Annotated[reduce(or_, members), Discriminator(_kind_of)]
    blocks: Any = Annotated[tuple[block, ...], Field(min_length=1)]
    return create_model(
        Config.__name__, __base__=Config, __doc__="A whole sweep file.",
        benchmarks=(blocks, Field(description=Config.model_fields["benchmarks"].description)))


def stored_config(stored: Mapping[str, Any]) -> Config:
    """Return a stored plan's configuration without blocks. Raises ConfigError of other keys."""
    try:
        return Config.model_validate_json(json.dumps({**stored, "benchmarks": []}))
    except ValidationError as error:
        keys = ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
        raise ConfigError("the configuration that is stored with the plan is of another version "
                          f"of hpcbench: this one does not read {keys}; use that one, or a "
                          "new folder") from None


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
    kept = [item for item in details if not (item["type"] == "too_short" and item["input"]) and (
        _is_unknown_kind(item) or _block(item["loc"]) not in unknown)]
    # pydantic puts the kind behind a block's number
    locations = (at[:2] + at[3:] if at[:1] == ("benchmarks",) else at
                 for at in (item["loc"] for item in kept))
    return [(key_path(at, raw), _message(item, root))
            for at, item in zip(locations, kept, strict=True)]


class _NoProblems:
    """Stands for a plug-in's planner that fails: its block becomes a skipped case."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def problems(self, block: Block) -> Iterator[str]:
        yield from ()


def names_in_blocks(error: ValidationError, raw: Any) -> Iterator[tuple[str, str]]:
    """Yield (key, message) of each unknown name, in blocks that are valid without refused keys."""
    refused = [item["loc"] for item in error.errors(include_url=False)]
    blocks = raw.get("benchmarks") if isinstance(raw, Mapping) else None
    for number, content in enumerate(blocks if isinstance(blocks, list) else ()):
        if not isinstance(content, Mapping):
            continue
        bad = {location[3] for location in refused
               if location[:2] == ("benchmarks", number) and len(location) > 3}
        kind = kind_named(content.get("kind"))
        if kind not in kinds():
            continue
        kept = {name: value for name, value in content.items() if name not in bad}
        try:
            block = BLOCKS[kind].model_validate_json(to_json(kept, default=str))
        except ValidationError:
            continue
        planner = spec_of(kind).guarded("planner", spec_of(kind).planner_path, _NoProblems)
        for problem in planner.problems(block):
            yield "benchmarks", f"{block.name or f'{kind}-{number + 1}'}: {problem}"


_LEAST_SECRET = 8


def half_characters(raw: Any) -> Iterator[tuple[str, str]]:
    """Yield (key path, message) of every text with half of a surrogate pair, which JSON allows."""
    for location, text in _texts(raw, ()):
        if not is_valid(text):
            yield valid(key_path(location, raw)), (
                f'"{valid(text)}" has half of a surrogate pair, which is no character: write the '
                "character itself, or both halves")


def secrets_in(raw: Any, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (key path, message) of every text that holds a secret, or what looks like one.

    Short values of variables may be words of a sweep file."""
    mask = masker({name: value for name, value in environ.items() if len(value) >= _LEAST_SECRET})
    for location, text in _texts(raw, ()):
        if mask(text) != text:
            yield key_path(location, raw), (
                f'"{mask(text)}" holds a secret at ***, and this file is kept with the results: '
                "take it out, or set a variable where the job is started and name it in "
                "launch.pass_env")


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


def key_path(location: Iterable[int | str], raw: Any) -> str:
    """Return ``benchmarks[0].size`` for a location; the index of a lone value is left out."""
    path = ""
    for part in location:
        if isinstance(part, str) and part != "[key]":
            name = part if part.isprintable() else axes.quote(part)
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
        return f"{wanted}, not {axes.quote(item['input'])}" + f"; {axes.YAML_SWITCHES}" * read
    return item["msg"]


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return a section's keys as they are written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _section(location: Location, root: type[BaseModel]) -> type[BaseModel]:
    if len(location) == 1:
        return root
    if location[0] == "benchmarks" and len(location) > 2:
        return BLOCKS[str(location[2])]
    return _sections(root)[str(location[0])]


def _sections(root: type[BaseModel]) -> dict[str, type[Section]]:
    """Return the sections of a file, without its blocks; none has a section within it."""
    return {key: part for key, field in zip(keys_of(root), root.model_fields.values(), strict=True)
            for part in (field.annotation, *get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, Section)
            and not issubclass(part, Block)}


def _unknown_key(location: Location, root: type[BaseModel]) -> str:
    key, allowed = str(location[-1]), keys_of(_section(location, root))
    if issubclass(root, Dialect):
        return (f"unknown key of a file of {root.tool};{_guess(key, allowed)} "
                f"allowed: {', '.join(allowed)}")
    sections = [name for name, model in _sections(Config).items() if key in keys_of(model)]
    kinds = [kind for kind, model in BLOCKS.items() if key in keys_of(model)]
    if kinds:
        sections.append("benchmarks" if _block(location) is None else
                        f"blocks of kind {' or '.join(kinds)}")
    hint = _guess(key, allowed) or (f" it belongs to {' or '.join(sections)};" if sections else "")
    return f"unknown key;{hint} allowed: {', '.join(allowed)}"


def _guess(key: str, allowed: Iterable[str]) -> str:
    guess = axes.nearest(key, allowed)
    return f' did you mean "{guess}"?' if guess else ""


def _missing_key(location: Location, root: type[BaseModel]) -> str:
    key = str(location[-1])
    fields = _section(location, root).model_fields.items()
    about = [field.description for name, field in fields if key == (field.alias or name)]
    if not about or not about[0]:
        return "the key is missing"
    return f"the key is missing; it holds {about[0][0].lower()}{about[0][1:].rstrip('.')}"
