"""``hpcbench model`` and ``hpcbench mfu``: parameters, FLOPs and memory of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from hpcbench.commands import flags
from hpcbench.commands.flags import JsonOption, QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import ConfigError, UsageError
from hpcbench.units import parse_bytes, parse_flop_per_s, plural, to_tflop_per_s

if TYPE_CHECKING:
    from hpcbench.kinds.training.plan.any_model import AnyShape
    from hpcbench.operations.models import ModelShape
    from hpcbench.plan.case import Case
    from hpcbench.views.table import Column, Show, Table

_MOST_PER_S = 1e18
_FORMS = ("own", "causal", "full")
"""How attention counts: as the definition has it, half of all pairs, all pairs."""
_FLAGS = {"benchmarks[0].dtype": "--dtype", "hardware.memory_per_device_gb": "--memory"}
"""Key of the sweep that is planned -> the flag that it comes from."""
Devices = Annotated[int, typer.Option(
    min=1, max=100_000, metavar="N", help="Devices, a rank each.")]
SeqLength = Annotated[Optional[int], typer.Option(
    "--seq-length", min=1, max=2**31, metavar="TOKENS",
    help="Tokens of a sample; default: the model's longest.")]


def model(
    name: Annotated[str, typer.Argument(
        metavar="NAME|FILE", autocompletion=flags.listed("models"),
        help="A model of hpcbench list, its name on the hub, or a Hugging Face config.json.")],
    devices: Devices = 1,
    memory: Annotated[Optional[str], typer.Option(
        metavar="SIZE", help="Memory of a device, as 80GB: tells what fits.")] = None,
    strategy: Annotated[Optional[list[str]], typer.Option(
        metavar="NAME", autocompletion=flags.listed("strategies"),
        help="Only this strategy; repeatable.")] = None,
    seq_length: SeqLength = None,
    batch_size: Annotated[int, typer.Option(
        min=1, max=2**31, metavar="N", help="Samples of a replica in a step.")] = 1,
    dtype: Annotated[str, typer.Option(
        metavar="TYPE", help="Of the arithmetic: fp32, bf16 or fp16.")] = "bf16",
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Show parameters, FLOPs and memory of a model, as `plan` predicts them.

    Examples:
        hpcbench model llama3-8b --devices 64 --memory 80GB
        hpcbench model Qwen/Qwen3-8B --devices 8 --strategy fsdp --seq-length 4096
        hpcbench model path/to/config.json --json"""
    from hpcbench.kinds.training.plan.any_model import extents_of, parameters_of
    from hpcbench.kinds.training.plan.models import active_parameters
    from hpcbench.operations.models import ModelShape
    from hpcbench.report.terminal import Sentence, print_document, print_lines
    from hpcbench.views.table import Show

    verbosity_of(verbose, quiet)
    shape = _shape(name, seq_length)
    cases = _cases(name, devices, memory, {
        "strategies": _strategies(strategy or []), "seq_length": seq_length,
        "batch_size": batch_size, "dtype": dtype})
    total = parameters_of(shape)
    active = active_parameters(shape) if isinstance(shape, ModelShape) else total
    extents = {key: value for key, value in extents_of(shape).items() if value}
    if as_json:
        return print_document({
            "schema": "hpcbench.model", "schema_version": 1, "model": name, **extents,
            "parameters": total, "active_parameters": active, "flops": _rates(shape),
            "devices": devices, "strategies": [_plain(case) for case in cases]})
    each = "a token" if isinstance(shape, ModelShape) else "an image"
    built = ", ".join(f"{key} {value}" for key, value in extents.items())
    return print_lines([
        Sentence(f"{name}: {built}"),
        Sentence(f"{total:,} parameters" + (
            f", {active:,} of them active a token" if active != total else "")),
        _by_definition(f"FLOPs of {each}, forward and backward", _rates(shape), each, Show.GFLOP,
                       "1e9"),
        *_memory_lines(cases, devices, f"{dtype}, {plural(batch_size, 'sample')} a replica",
                       parse_bytes(memory) if memory else None),
    ], whole=verbose)


def mfu(
    model: Annotated[str, typer.Option(
        metavar="NAME|FILE", autocompletion=flags.listed("models"),
        help="A model of hpcbench list, its name on the hub, or a Hugging Face config.json.")],
    tokens_per_s: Annotated[float, typer.Option(
        metavar="T", help="Tokens a second of all devices together.")],
    peak: Annotated[str, typer.Option(
        metavar="FLOP/s", help="Peak of one device in the arithmetic used, as 989T or 989e12.")],
    devices: Devices = 1,
    seq_length: SeqLength = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Show the MFU of a throughput by every definition.

    Examples:
        hpcbench mfu --model llama3-8b --tokens-per-s 53336 --devices 8 --peak 989T
        hpcbench mfu --model config.json --tokens-per-s 9000 --peak 312e12 --json"""
    from hpcbench.report.terminal import Sentence, print_document, print_lines
    from hpcbench.views.table import Column, Show

    verbosity_of(verbose, quiet)
    if not 0 < tokens_per_s < _MOST_PER_S:
        raise UsageError(f"--tokens-per-s: {tokens_per_s} is not a number of tokens above 0")
    shape, per_s = _transformer(model, seq_length), _peak(peak)
    rows = [_of_peak(row, tokens_per_s / devices, per_s) for row in _rates(shape)]
    if as_json:
        return print_document({
            "schema": "hpcbench.mfu", "schema_version": 1, "model": model,
            "seq_length": shape.seq_length, "tokens_per_s": tokens_per_s, "devices": devices,
            "peak_flops_per_s": per_s, "mfu": rows})
    above = [row["definition"] for row in rows if max(row[form] for form in _FORMS) > 1]
    return print_lines([
        Sentence(f"{model} of {shape.seq_length} tokens: {tokens_per_s / devices:,.6g} tokens/s a "
                 f"device of {to_tflop_per_s(per_s):,.6g} TFLOP/s"),
        _by_definition("MFU by definition", rows, "MFU", Show.PERCENT, "%",
                       Column("flops_per_token", "a token", Show.GFLOP, "1e9 FLOP")),
        *([Sentence(f"above 100 % by {', '.join(above)}: no device does more than its peak; check "
                    "that tokens/s are those of all devices, and the peak of the arithmetic used",
                    style="yellow")] if above else []),
    ], whole=verbose)


def vocabulary(model: str) -> int:
    """Return the vocabulary of a named model. Raises UsageError if it is none of a transformer."""
    return _transformer(model, None).vocab


def _transformer(name: str, seq_length: int | None) -> ModelShape:
    from hpcbench.operations.models import ModelShape

    shape = _shape(name, seq_length)
    if not isinstance(shape, ModelShape):
        raise UsageError(f"{name} takes images, not tokens")
    return shape


def _shape(name: str, seq_length: int | None) -> AnyShape:
    """Return the shape of a named model. Raises UsageError of what is wrong with it."""
    from hpcbench.kinds.training.plan.any_model import RESNETS, shape_with, why_no_model
    from hpcbench.operations.models import shipped

    name = shipped(name)
    if problem := why_no_model(name):
        raise UsageError(problem)
    if name in RESNETS and seq_length:
        raise UsageError(f"--seq-length: {name} takes images, not tokens")
    given = {} if seq_length is None else {"seq_length": seq_length}
    found = shape_with(name, **given)
    if isinstance(found, str):
        raise UsageError(found)
    return found


def _strategies(named: list[str]) -> list[str]:
    """Return the named strategies, or all. Raises UsageError of an unknown name."""
    from hpcbench.kinds.training.plan.spec import strategies, unknown_strategy, usable

    for name in named:
        if usable(name, {}) is None:
            raise UsageError(f"--strategy: {unknown_strategy(name)}")
    return named or [spec.name for spec in strategies()]


def _cases(
    name: str, devices: int, memory: str | None, keys: dict[str, Any],
) -> Sequence[Case]:
    """Return the plan's cases of a step, one of each strategy. Raises UsageError."""
    from hpcbench.config.load import check_config
    from hpcbench.kinds.training.plan.workload import training_of
    from hpcbench.plan.expand import make_plan

    try:
        limit = {} if memory is None else {"memory_per_device_gb": parse_bytes(memory) / 1e9}
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
    block = {"kind": "training", "model": name, "backend": "nccl", **{
        key: value for key, value in keys.items() if value is not None}}
    try:
        config = check_config({"hardware": limit, "benchmarks": [block]}, "")
    except ConfigError as error:
        at, _, problem = str(error).removeprefix(": ").partition(": ")
        raise UsageError(f"{_FLAGS.get(at, at)}: {problem}") from None
    wanted = keys["strategies"]
    return sorted(make_plan(config, devices).cases,
                  key=lambda case: wanted.index(training_of(case).strategy))


def _rates(shape: AnyShape) -> list[dict[str, Any]]:
    """Return the FLOPs of a token, or an image, in forward and backward by each definition."""
    from hpcbench.kinds.training.plan import models
    from hpcbench.kinds.training.plan.any_model import flops_of
    from hpcbench.operations.models import ModelShape

    if not isinstance(shape, ModelShape):
        return [{"definition": name, **dict.fromkeys(_FORMS, float(flops))}
                for name, flops in flops_of(shape, 1)]
    return [{"definition": name, **{
        form: models.flops_by(name, shape, halves) / shape.seq_length
        for form, halves in zip(_FORMS, (None, 1, 2), strict=True)}} for name in models.DEFINITIONS]


def _of_peak(row: dict[str, Any], tokens_per_s: float, peak: float) -> dict[str, Any]:
    return {**row, **{form: row[form] * tokens_per_s / peak for form in _FORMS},
            "flops_per_token": row["own"]}


def _plain(case: Case) -> dict[str, Any]:
    from hpcbench.kinds.training.plan.workload import training_of

    return {"strategy": training_of(case).strategy, "memory_bytes": case.memory_bytes or None,
            "runs": case.skip is None, "reason": case.skip}


def _peak(text: str) -> float:
    try:
        return parse_flop_per_s(text)
    except ValueError as error:
        raise UsageError(f"--peak: {error}") from None


def _by_definition(
    title: str, rows: Sequence[dict[str, Any]], own: str, show: Show, unit: str, *more: Column,
) -> Table:
    """Return a table of numbers in the forms of attention, and ``more`` of each row."""
    from hpcbench.kinds.training.plan.models import DEFINITIONS
    from hpcbench.views.table import Column, Group, Row, Table

    titles = dict(zip(_FORMS, (own, "causal", "not causal"), strict=True))
    numbers = (*(Column(form, titles[form], show, unit) for form in _FORMS), *more)
    columns = (Column("definition", "definition"), *numbers, Column("meaning", "counts"))
    cells = tuple(Row((row["definition"], *(row[column.name] for column in numbers),
                       DEFINITIONS[row["definition"]].meaning)) for row in rows)
    return Table(title, columns, (Group("", cells),))


def _memory_lines(
    cases: Sequence[Case], devices: int, setting: str, limit: int | None,
) -> Iterator[Any]:
    """Yield the memory of each strategy; one line where none can train the model.

    A plan keeps what is above the limit by no more than a prediction's error: that may fit."""
    from hpcbench.kinds.training.plan.workload import training_of
    from hpcbench.report.terminal import Sentence
    from hpcbench.units import round_bytes
    from hpcbench.views.table import Column, Group, Row, Table

    reasons = {case.skip for case in cases}
    if len(reasons) == 1 and not any(case.memory_bytes for case in cases):
        yield Sentence(str(*reasons))
        return
    columns = (Column("strategy", "strategy"), Column("memory", "memory"),
               Column("fits", "fits", optional=True), Column("reason", "why not", optional=True))
    rows = []
    for case in cases:
        needed, reason = case.memory_bytes, case.skip or ""
        rows.append(Row((
            training_of(case).strategy, round_bytes(needed) if needed else None,
            None if limit is None or not needed else "no" if reason else
            "yes" if needed <= limit else "perhaps",
            (reason.partition("; ")[2] if needed else reason) or None),  # its need stands there
            "skipped" if reason else "ok"))
    yield Table(f"predicted memory of a device, {plural(devices, 'device')}, {setting}",
                columns, (Group("", tuple(rows)),))
