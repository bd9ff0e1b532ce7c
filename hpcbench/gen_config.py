"""A sweep file to begin with: for known hardware, or another file in the canonical form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hpcbench.config import load
from hpcbench.config.presets.preset import Preset, load_preset
from hpcbench.config.schema import Config
from hpcbench.config.yaml_text import commented_yaml
from hpcbench.errors import ConfigError, FileError, UsageError, command_line, job_command_line
from hpcbench.measurement.process import own_cores
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import plan_estimate_s
from hpcbench.texts import as_field, to_json
from hpcbench.trace.container import whole_file
from hpcbench.units import digits, plural, shortened

SCHEMA_FILE = "config.schema.json"
"""Where editors look for the schema: beside the sweep file, written by ``hpcbench schema``."""
_SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file before it is written.

    ``remarks`` become comments at the top, ``sources`` comments before the keys of section
    ``hardware``; in JSON both become ``notes``. ``text`` is the YAML where it is already written.
    ``ranks`` are those that it is for; None: the devices that it declares, if any."""

    content: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    ranks: int | None = None


def generate(
    hardware: str | None, source: Path | None, output: Path | None, *, force: bool,
) -> str:
    """Return the sweep file as YAML or, after writing it to ``output``, a line about that.

    Raises UsageError for unknown names and suffixes, ConfigError for a ``source`` that is no
    sweep, FileError if the file cannot be written, or is there and ``force`` is not given."""
    if hardware is None and source is None:
        raise UsageError("give --hardware, --from or both: a machine, or a file to begin with")
    preset = None if hardware is None else load_preset(hardware)
    if output is not None:
        check_output(output, force=force)
    if source is not None:
        sweep = read_sweep(source)
        sweep = with_hardware(sweep, preset, source) if preset else sweep
    else:
        assert preset is not None
        sweep = Sweep(preset.content, (preset.about,), preset.sources, preset.text)
    return _written(sweep, output)


def write_sweep(sweep: Sweep, output: Path | None, *, force: bool) -> str:
    """Return a sweep as YAML or, after writing it to ``output``, a line about that.

    Raises UsageError and FileError as `generate` does."""
    if output is not None:
        check_output(output, force=force)
    return _written(sweep, output)


_HERE = Path(__file__).parent / "config" / "here.json"
MOST_BYTES = 256 * 2**20
"""The largest buffer of a collective; less where memory is short."""
_OF_MEMORY = 64
"""A buffer has at most this part of a rank's memory: there are several, and checks copy them."""
_LARGE_BYTES = 16 * 10**9
"""With more, a GPU takes the sizes and the model for which it is made."""
BUDGET_S = 60.0
"""For the timed samples of all cases of one pass."""


def generate_here(ranks: int | None, output: Path | None, *, force: bool) -> str:
    """Return the sweep file for this machine, or, after writing it, a line about that.

    Raises as `generate` does, and LaunchError without torch."""
    if output is not None:
        check_output(output, force=force)
    from hpcbench.launch.probe import probe_here  # which imports torch's facts: not for --hardware

    return _written(sweep_here(probe_here(), ranks), output)


def sweep_here(machine: Mapping[str, Any], ranks: int | None) -> Sweep:
    """Return a sweep for a machine of `launch.probe.probe_here`."""
    gpus = machine["gpu_memory_bytes"]
    ranks = ranks or len(gpus) or min(len(own_cores()), MOST_RANKS_OF_CORES)
    memory = min(gpus) if gpus else psutil.virtual_memory().available // ranks
    usable = [name for name in ("nccl", "gloo", "mpi", "ucc") if machine["backends"][name] is None
              and not (gpus and name in ("gloo", "mpi"))]
    content = {
        "name": "here", "hardware": {
            "device_type": "cuda" if gpus else "cpu",
            **({"num_devices": len(gpus)} if gpus else {}),
            "memory_per_device_gb": round(memory / 1e9, 1)},
        "measure": {"budget_s": BUDGET_S},
        "benchmarks": _blocks_here(usable or ["gloo"], bool(gpus), memory)}
    plan = make_plan(load.check_config(content, "here"), ranks)
    minutes = max(plan_estimate_s(plan) / 60, 1)
    devices = (f"{len(gpus)} x {machine['device_names'][0]}" if gpus else
               f"{plural(len(own_cores()), 'core')}, no GPU")
    links = {link for row in machine["links"] for link in row if link}
    return Sweep(content, (
        f"Made by gen-config here: {devices}, {digits(memory / 1e9, 3)} GB a rank"
        + (f", links {', '.join(sorted(links))}" if links else ""),
        job_command_line(ranks, "run", "FILE"),
        f"{plural(len(plan.cases), 'case')} on {plural(ranks, 'rank')}: about {minutes:.0f} min by "
        "assumed rates.",
        *(f"{name} is left out: {machine['backends'][name].removeprefix(f'{name}: ')}"
          for name in ("nccl", "mpi", "ucc")
          if machine["backends"][name] and (gpus or name != "nccl"))), ranks=ranks)


MOST_RANKS_OF_CORES = 8
"""Without GPUs: a rank a core, but a sweep to begin with needs no more."""


def _blocks_here(backends: Sequence[str], on_gpu: bool, memory: int) -> Any:
    """Return the blocks of ``config/here.json`` for this machine, of sizes that fit.

    There ``{"$": [...]}`` has a value for CPUs, one for small GPUs and one for others."""
    most = MOST_BYTES if on_gpu else MOST_BYTES // 16
    while 2**20 < most > memory // _OF_MEMORY:
        most //= 4
    size = 0 if not on_gpu else 2 if memory > _LARGE_BYTES else 1
    values = {"$first": backends[0], "$backends": [*backends], "$most": f"{most // 2**20}MiB"}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return (value["$"][size] if "$" in value else
                    {key: filled(item) for key, item in value.items()})
        return values.get(value, value) if isinstance(value, str) else (
            [filled(item) for item in value] if isinstance(value, list) else value)

    return filled(load.read_config(_HERE)["benchmarks"])


def _written(sweep: Sweep, output: Path | None) -> str:
    """Return a sweep as YAML or, after writing it to ``output``, a line about that."""
    if output is None:
        return as_yaml(sweep)
    text = as_json(sweep) if output.suffix.lower() == ".json" else as_yaml(sweep)
    with whole_file(output) as part:
        part.write_text(text, encoding="utf-8")
    ranks = sweep.ranks or (sweep.content.get("hardware") or {}).get("num_devices", 1)
    more = ("--world-size", ranks) if ranks > 1 else ()  # a node of a cluster may have one device
    return as_field(f"{output}: written; {command_line('plan', output, *more)} shows its cases")


def check_output(path: Path, *, force: bool, flag: str = "-o",
                 endings: Sequence[str] = _SUFFIXES) -> None:
    """Refuse the file of a flag that cannot be written as requested, before anything is read or
    made. Raises UsageError, FileError."""
    if path.suffix.lower() not in endings:
        *first, last = endings
        allowed = f"{', '.join(first)} or {last}" if first else last
        raise UsageError(f"{flag} {shortened(str(path))}: end the name in {allowed}, which says "
                         "what is written")
    named = str(path) if flag == "-o" else f"{flag} {path}"
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
        is_there = path.exists() or path.is_symlink()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise FileError(
            f"{shortened(str(path))}: cannot be written: {error.strerror}") from None
    if is_folder:
        raise FileError(f"{named}: is a folder; name a file in it")
    if not has_folder:
        raise FileError(f"{named}: there is no folder {path.parent}; make it first")
    if is_there and not force:
        raise FileError(f"{named}: there already; --force writes over it")


def read_sweep(source: Path) -> Sweep:
    """Return a sweep file in the canonical form; losses of another tool's become remarks."""
    config = load.load_config(source)
    dumped = config.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    content = {key: value for key, value in dumped.items() if value not in ({}, [])}
    content["benchmarks"] = [_readable(content, number, config)
                             for number in range(len(content["benchmarks"]))]
    dialect = load.dialect_of(load.read_config(load.find_config(source)))
    if dialect is None:
        return Sweep(content)
    notes = content.pop("notes", [])
    return Sweep(content, (f"Translated from {source.name}, a file of {dialect.tool}.", *notes))


def _readable(content: Mapping[str, Any], number: int, config: Config) -> Any:
    """Return a block with single values for lists of one, if that means the same, as in axes."""
    short = _without_lists_of_one(content["benchmarks"][number])
    try:
        checked = load.check_config({"benchmarks": [short]}, "").benchmarks[0]
        is_same = checked == config.benchmarks[number]
    except ConfigError:
        is_same = False
    return short if is_same else content["benchmarks"][number]


def _without_lists_of_one(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_lists_of_one(item) for key, item in value.items()}
    if isinstance(value, list) and len(value) == 1:
        return _without_lists_of_one(value[0])
    return [_without_lists_of_one(item) for item in value] if isinstance(value, list) else value


def with_hardware(sweep: Sweep, preset: Preset, source: Path) -> Sweep:
    """Return a sweep with what is known of a machine; own values stay. Raises ConfigError."""
    known: Mapping[str, Any] = preset.content["hardware"]
    hardware = sweep.content.get("hardware", {})
    own = {key: value for key, value in hardware.items() if value is not None}
    if own.get("device_type", known["device_type"]) != known["device_type"]:
        raise ConfigError(
            f"{source}: hardware.device_type is {own['device_type']}, but {preset.name} has "
            f"{known['device_type']}: leave --hardware away, or take that key out of the file")
    kept = list(_kept(own, known))
    remark = f"Section hardware is that of {preset.name}"
    remark += f", but {', '.join(kept)} of {source.name}." if kept else "."
    remark += " Blocks keep the backends and devices that they name."
    merged = {key: _merged(known.get(key), own.get(key)) for key in {**known, **own}}
    sources = {key: text for key, text in preset.sources.items() if key not in kept
               and not any(f"{name} is left out" in text for name in own)}
    # section hardware stands behind the name
    name = {key: sweep.content[key] for key in ("name",) if key in sweep.content}
    return Sweep({**name, "hardware": merged, **{
        key: value for key, value in sweep.content.items() if key not in ("name", "hardware")}},
        (*sweep.remarks, remark), sources)


def _kept(own: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys, such as ``peak_flops.bf16``, whose own value is not the known one."""
    for key, value in own.items():
        if isinstance(value, dict):
            yield from (f"{key}.{name}" for name in _kept(value, known.get(key, {})))
        elif value != known.get(key):
            yield key


def _merged(known: Any, own: Any) -> Any:
    """Return the own value of a key, else the known one; mappings are merged, own values win."""
    if isinstance(known, dict) and isinstance(own, dict):
        return {**known, **own}
    return known if own is None else own


def as_json(sweep: Sweep) -> str:
    """Return a sweep as JSON, which has no comments: those stand in ``notes``."""
    sources = (f"hardware.{key}: {text}" for key, text in sweep.sources.items())
    notes = [*sweep.content.get("notes", ()), *sweep.remarks, *sources]
    content = {"$schema": SCHEMA_FILE, **sweep.content, **({"notes": notes} if notes else {})}
    return to_json(content, indent=2, ensure_ascii=False) + "\n"


def as_yaml(sweep: Sweep) -> str:
    remarks = (f"yaml-language-server: $schema={SCHEMA_FILE}", *sweep.remarks)
    return sweep.text or commented_yaml(sweep.content, remarks, {"hardware": sweep.sources})
