"""``hpcbench gen-config``, ``gen-data`` and ``schema``: files to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.config.presets import HARDWARE


def gen_config(
    hardware: Annotated[Optional[str], typer.Option(
        help=f"The machine: {', '.join(HARDWARE)}.")] = None,
    output: Annotated[Optional[Path], typer.Option(
        "-o", "--output", metavar="FILE", help="The file to write, .json, .yaml or .yml. "
        "Default: print YAML.")] = None,
    source: Annotated[Optional[Path], typer.Option(
        "--from", metavar="FILE", help="A sweep file, also of another tool, to begin with. "
        "With --hardware its own values of the machine win.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write a sweep file for a machine, or another tool's file in the form of ours."""
    from hpcbench.gen_config import generate

    typer.echo(generate(hardware, source, output, force=force).rstrip("\n"))


def gen_data(
    path: Annotated[Path, typer.Argument(help="The file to write, such as corpus.bin.")],
    tokens: Annotated[int, typer.Option(min=1, max=2**40, help="How many.")],
    vocab: Annotated[Optional[int], typer.Option(
        min=1, max=2**31, help="Tokens are below it.")] = None,
    model: Annotated[Optional[str], typer.Option(
        help="Instead: the model whose vocabulary it is.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the random tokens.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write a file of random tokens for trainings: uint16, or uint32 where the vocabulary needs it.
    """
    from hpcbench.gen_data import generate

    typer.echo(generate(path, tokens, vocab, model, seed, force=force))


def schema() -> None:
    """Print the JSON Schema of config.json."""
    from hpcbench.config.load import json_schema

    typer.echo(json_schema())
