"""``hpcbench advise``: what follows from results, in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hpcbench.commands import completion
from hpcbench.commands.flags import JsonOption
from hpcbench.verbosity import Verbosity


def advise(
    files: Annotated[list[Path], typer.Argument(
        help="results.h5, or its folder; several are analysed together.")],
    only: Annotated[Optional[list[str]], typer.Option(
        "--only", autocompletion=completion.topics, help="A topic, such as recommend. "
        "Repeatable.")] = None,
    price: Annotated[Optional[float], typer.Option(
        "--price", min=0.0, help="Price of a device for an hour, in any currency.")] = None,
    samples: Annotated[int, typer.Option(
        "--samples", min=1, help="Training samples whose time and cost are told.")] = 10_000,
    as_json: JsonOption = False,
    *, verbosity: Verbosity,
) -> None:
    """Answer questions from results: the number, how sure it is, and the command behind it.

    Examples:
        hpcbench advise results/latest
        hpcbench advise results/latest --only recommend --verbose
        hpcbench advise results/latest --json | jq ".topics.recommend.answers[].sentence"
    """
    from hpcbench.analysis.answer import Asked
    from hpcbench.report.answer_lines import advice, print_advice, print_advice_json

    verbosity.details([f"reads {path.absolute()}" for path in files])
    told = advice(files, only or (), Asked(price, samples))
    if as_json:
        print_advice_json(told, files)
    else:
        print_advice(told, verbosity)
