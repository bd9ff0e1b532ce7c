"""The commands that README, docs and the logs of benchmarks show, as words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher import ROOT

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "benchmarks/results").glob("*.md")))
_COMMAND = re.compile(
    r"(?:hpcbench|python|mpirun|bash|sbatch|srun|pip|torchrun)(?: |$)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_FENCES = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LAUNCHED = re.compile(r"(?:^|-m )hpcbench(?: |$)| hpcbench (?=[a-z])")


@dataclass(frozen=True)
class DocCommand:
    """One command of a page; ``words`` are without variables, comments and pipes."""

    page: str
    text: str
    words: tuple[str, ...]

    @property
    def ours(self) -> tuple[str, ...] | None:
        """The words behind ``hpcbench``, also behind a launcher; None for other programs."""
        found = _LAUNCHED.search(shlex.join(self.words))
        return tuple(shlex.split(shlex.join(self.words)[found.end():])) if found else None

    @property
    def script(self) -> str | None:
        """The file of this repository that bash, sbatch or python is given."""
        runs_files = self.words[0] in ("bash", "sbatch", "python") and not {
            "-m", "-c"} & set(self.words)
        return next((word for word in self.words[1:] if not word.startswith("-")),
                    None) if runs_files else None


def commands() -> Iterator[DocCommand]:
    """Yield the commands of all pages, each text once a page."""
    for page in PAGES:
        for text in dict.fromkeys(_texts(page)):
            words = text.split(" ")
            while words and _VARIABLE.match(words[0]):
                words.pop(0)
            rest = " ".join(words)
            if _COMMAND.match(rest) and "..." not in rest:
                yield DocCommand(page.name, text, tuple(shlex.split(_one_command(rest))))


def _texts(page: Path) -> Iterator[str]:
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    fenced = [line for block in _FENCES.findall(text) for line in block.splitlines()[1:-1]]
    prose = _FENCES.sub("", text)
    indented = re.findall(r"^    (.*)$", prose, re.MULTILINE)
    inline = re.findall(r"`([^`]+)`", re.sub(r"^    .*$", "", prose, flags=re.MULTILINE))
    for found in (*fenced, *indented, *inline):
        yield " ".join(re.sub(r"\s#\s.*", "", found).split()).removeprefix("$ ")


def _one_command(text: str) -> str:
    """Return what stands in front of a pipe or a redirection."""
    return re.split(r" [|>] ", text)[0]
