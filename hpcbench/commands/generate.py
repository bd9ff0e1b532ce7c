"""``hpcbench list``: what can be measured.

``hpcbench gen-config``, ``from-command``, ``gen-data`` and ``schema``: files to begin with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import MOST_RANKS, JsonOption, QuietOption, VerboseOption, verbosity_of
from hpcbench.errors import UsageError
from hpcbench.registry import CommandSpec, offered
from hpcbench.texts import as_field, say, say_all


def list_(
    probe: Annotated[bool, typer.Option(
        "--probe/--no-probe", help="Check which backends this machine has (default).")] = True,
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """List collectives, primitives, models, strategies and backends.

    Examples:
        hpcbench list
        hpcbench list --no-probe --quiet
        hpcbench list --json | jq ".models | keys"
    """
    from hpcbench.report.plan_lines import print_listing

    machine, verbosity = None, verbosity_of(verbose, quiet)
    if probe and importlib.util.find_spec("torch"):
        from hpcbench.launch.probe import probe_here

        with verbosity.stage("probe"):
            machine = probe_here()
    print_listing(machine, probe=probe, as_json=as_json, verbosity=verbosity)


def gen_config(
    here: Annotated[Optional[str], typer.Argument(
        metavar="[here]", help="A sweep for this machine, its devices and memory; or acceptance: "
        "the folder of an acceptance test of --hardware, in -o DIR.")] = None,
    ranks: Annotated[Optional[int], typer.Option(
        min=1, max=MOST_RANKS, metavar="N",
        help="Ranks of here (default: its GPUs, else cores), or a node of --from.")] = None,
    hardware: Annotated[Optional[str], typer.Option(
        metavar="NAME", autocompletion=completion.hardware,
        help="Machine, such as h100-nvlink; hpcbench list names all.")] = None,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", callback=completion.dash_prints,
        help="File to write, .json, .yaml or .yml; default: print YAML.")] = None,
    source: Annotated[Optional[Path], typer.Option(
        "--from", metavar="FILE", help="Start from this sweep file of any known tool.")] = None,
    for_prediction: Annotated[Optional[int], typer.Option(
        "--for-prediction", min=2, max=MOST_RANKS, metavar="N",
        help="With here or --from: the smallest sweep that carries predictions for N ranks.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Write a sweep file for a machine, or from another tool's file.

    Examples:
        hpcbench gen-config here -o here.yaml
        hpcbench gen-config here --for-prediction 64 -o small.yaml
        hpcbench gen-config --from other.json -o sweep.yaml"""
    from hpcbench.gen_config import generate, generate_here

    if for_prediction:
        if (here is None) == (source is None) or hardware or here not in (None, "here"):
            raise UsageError("--for-prediction: give here, or --from FILE alone")
        about = _for_prediction(for_prediction, source, ranks, output, force=force).rstrip("\n")
        say_all(as_field(str(output)) if output and quiet else about)
        return
    if here and (offer := offered(CommandSpec).get(f"gen-config {here}")):
        more = {name: value for name, value in (("ranks", ranks), ("source", source)) if value}
        say_all(offer.load()(hardware, output, force=force, **more).rstrip("\n"))
        return
    if here not in (None, "here") or (here and (hardware or source)):
        raise UsageError("write here alone, or --hardware, --from or both")
    if ranks is not None and not here:
        raise UsageError("--ranks is for here and --for-prediction")
    about = (generate_here(ranks, output, force=force) if here else
             generate(hardware, source, output, force=force)).rstrip("\n")
    say_all(as_field(str(output)) if output and quiet else about)


def _for_prediction(
    wanted: int, source: Path | None, ranks: int | None, output: Path | None, *, force: bool,
) -> str:
    """Return the sweep for predictions of a file or this machine, with ``ranks`` on a node."""
    from hpcbench.gen_config import Sweep, read_sweep, sweep_here
    from hpcbench.launch.probe import probe_here

    offer = offered(CommandSpec).get("gen-config --for-prediction")
    if offer is None:
        raise UsageError("--for-prediction: predictions are not part of this installation")

    def base() -> Sweep:
        return read_sweep(source) if source else sweep_here(probe_here(), ranks)

    text: str = offer.load()(base, wanted, ranks, output, force=force)
    return text


def gen_data(
    path: Annotated[Path, typer.Argument(
        metavar="FILE", help="File to write, such as corpus.bin.")],
    tokens: Annotated[int, typer.Option(
        min=1, max=2**40, metavar="N", help="Number of tokens.")],
    vocab: Annotated[Optional[int], typer.Option(
        min=1, max=2**31, metavar="N", help="Vocabulary size: tokens are below it.")] = None,
    model: Annotated[Optional[str], typer.Option(
        metavar="NAME|FILE", autocompletion=completion.models_with_vocabulary,
        help="Use the vocabulary of this model, or of a Hugging Face config.json.")] = None,
    seed: Annotated[int, typer.Option(
        min=0, max=2**63 - 1, metavar="N", help="Seed of the random tokens; default: 0.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Write a file of random tokens for trainings.

    The type is uint16, or uint32 for vocabularies above 65,536.

    Examples:
        hpcbench gen-data corpus.bin --tokens 1000000 --model gpt2
        hpcbench gen-data corpus.bin --tokens 1000000 --vocab 50257 --seed 1 --force"""
    from hpcbench.gen_data import generate

    about = generate(path, tokens, vocab, model, seed, force=force)
    say(path if quiet else about)


def schema(verbose: VerboseOption = False, quiet: QuietOption = False) -> None:
    """Print the JSON Schema of sweep files.

    Examples:
        hpcbench schema
        hpcbench schema > config.schema.json"""
    from hpcbench.config.load import json_schema

    say_all(json_schema())
