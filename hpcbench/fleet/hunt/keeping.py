"""What a hunt leaves: hunt.json, and the lists of nodes, on disk after each round."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcbench import __version__
from hpcbench.errors import ExitCode
from hpcbench.fleet.hunt.facts import BAD, GOOD, SUSPECT
from hpcbench.fleet.hunt.job import HuntState, Keep
from hpcbench.fleet.hunt.judge import HuntJudgement, judge
from hpcbench.fleet.hunt.limits import HuntLimits
from hpcbench.fleet.hunt.plan import Hunt
from hpcbench.fleet.hunt.present import page_of, reason_lines
from hpcbench.report.page import html_text
from hpcbench.texts import Verbosity, printable, say, to_json
from hpcbench.trace.container import whole_file
from hpcbench.units import plural

_SHARE = 0.05
"""Of the time of a hunt, what is spent on writing."""
SCHEMA = 1


def keeper(folder: Path, limits: HuntLimits, verbosity: Verbosity) -> Keep:
    """Return what writes a hunt into a new folder of this one, and prints its progress."""
    name = f"hunt-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    return _Keeper(folder / name, limits, verbosity)


class _Keeper:
    """Lists are as ``srun --exclude`` takes them; who is good is written at the end only."""

    def __init__(self, folder: Path, limits: HuntLimits, verbosity: Verbosity) -> None:
        self._folder, self._limits, self._verbosity = folder, limits, verbosity
        self._next_s = 0.0
        self._stage = ""

    def __call__(self, hunt: Hunt, state: HuntState) -> ExitCode:
        stage = hunt.rounds[-1].stage if hunt.rounds else "start"
        if stage != self._stage:
            self._stage = stage
            self._verbosity.announce(
                f"stage {stage}" if hunt.rounds else
                f"hunt of {plural(len(hunt.job.nodes), 'node')}; results in {self._folder}")
        began_s = time.monotonic()
        if state is HuntState.GOES_ON and began_s < self._next_s:
            return ExitCode.INCOMPLETE
        is_over = state is HuntState.COMPLETE
        found = judge(hunt.job, hunt.rounds, hunt.facts, self._limits)
        if is_over:  # said first: a full disk hides no verdict
            for line in reason_lines(found):
                say(line)
        self._write(hunt, found, is_over=is_over)
        now_s = time.monotonic()
        self._next_s = now_s + (now_s - began_s) / _SHARE
        if is_over:
            self._print(found)
        return found.exit_code if is_over else ExitCode.INCOMPLETE

    def _write(self, hunt: Hunt, found: HuntJudgement, *, is_over: bool) -> None:
        document = {
            "schema": SCHEMA, "hpcbench": __version__, "is_complete": is_over,
            "job": asdict(hunt.job), "rounds": [asdict(step) for step in hunt.rounds],
            "facts": [asdict(fact) for fact in hunt.facts],
            "verdicts": [asdict(one) for one in found.verdicts], "notes": list(found.notes)}
        files: Mapping[str, Any] = {
            "hunt.json": to_json(document) + "\n",
            "good_nodes.txt": _lines(found.names(GOOD)) if is_over else "",
            "bad_nodes.txt": _lines(found.names(BAD)),
            "suspect_nodes.txt": _lines(found.names(SUSPECT))}
        for name, text in files.items():
            self._put(name, text)
        if is_over:
            try:
                self._put("hunt.html", html_text(
                    page_of(hunt.job, hunt.rounds, hunt.facts, found), __version__))
            except Exception as error:  # what was found does not hang on how it is drawn
                self._verbosity.complain(f"hunt.html is not written: {type(error).__name__}: "
                                         f"{error}")

    def _put(self, name: str, text: str) -> None:
        with whole_file(self._folder / name, make_folder=True) as path:
            path.write_text(printable(text), encoding="utf-8")

    def _print(self, found: HuntJudgement) -> None:
        for note in found.notes:
            self._verbosity.announce(f"note: {note}")
        self._verbosity.announce(
            f"{len(found.names(GOOD))} of {plural(len(found.verdicts), 'node')} good; "
            f"{self._folder}/hunt.json")


def _lines(names: Iterable[str]) -> str:
    """Return the text of a file of nodes: Slurm's readers divide a line at commas in brackets."""
    return "".join(f"{name}\n" for name in names)
