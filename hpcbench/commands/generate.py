"""``hpcbench list``: what can be measured.

``hpcbench gen-config``, ``gen-data`` and ``schema``: files to begin with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import flags as completion
from hpcbench.commands.flags import JsonOption, QuietOption, VerboseOption, verbosity_of
from hpcbench.config.presets import HARDWARE
from hpcbench.texts import say


def list_(
    probe: Annotated[bool, typer.Option(
        "--probe/--no-probe", help="Ask this machine which backends it has.")] = True,
    as_json: JsonOption = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """List what can be measured: collectives, primitives, models, strategies; and backends here.

    Examples:
        hpcbench list
        hpcbench list --no-probe --quiet
        hpcbench list --json | jq ".models | keys"
    """
    from hpcbench.report.plan_lines import print_listing

    print_listing(probe=probe, as_json=as_json, verbosity=verbosity_of(verbose, quiet))


def gen_config(
    hardware: Annotated[Optional[str], typer.Option(
        autocompletion=completion.hardware,
        help=f"The machine: {', '.join(HARDWARE)}.")] = None,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", help="The file to write, .json, .yaml or .yml. "
        "Default: print YAML.")] = None,
    source: Annotated[Optional[Path], typer.Option(
        "--from", metavar="FILE", help="A sweep file, also of another tool, to begin with. "
        "With --hardware its own values of the machine win.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Write a sweep file for a machine, or another tool's file in the form of ours.

    Examples:
        hpcbench gen-config --hardware h100-nvlink -o h100.yaml
        hpcbench gen-config --from other.json -o sweep.yaml
    """
    from hpcbench.gen_config import generate

    about = generate(hardware, source, output, force=force).rstrip("\n")
    say(output if output and quiet else about)


def gen_data(
    path: Annotated[Path, typer.Argument(help="The file to write, such as corpus.bin.")],
    tokens: Annotated[int, typer.Option(min=1, max=2**40, help="How many.")],
    vocab: Annotated[Optional[int], typer.Option(
        min=1, max=2**31, help="Tokens are below it.")] = None,
    model: Annotated[Optional[str], typer.Option(
        autocompletion=completion.models_with_vocabulary,
        help="Instead: the model whose vocabulary it is.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the random tokens.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
    verbose: VerboseOption = False, quiet: QuietOption = False,
) -> None:
    """Write a file of random tokens for trainings: uint16, or uint32 where the vocabulary needs it.

    Examples:
        hpcbench gen-data corpus.bin --tokens 1000000 --model gpt2
        hpcbench gen-data corpus.bin --tokens 1000000 --vocab 50257 --seed 1 --force
    """
    from hpcbench.gen_data import generate

    about = generate(path, tokens, vocab, model, seed, force=force)
    say(path if quiet else about)


def schema(verbose: VerboseOption = False, quiet: QuietOption = False) -> None:
    """Print the JSON Schema of config.json.

    Examples:
        hpcbench schema
        hpcbench schema > config.schema.json
    """
    from hpcbench.config.load import json_schema

    say(json_schema())
