"""Texts that no change of the code may alter, made by commands as a user gives them.

``python tests/golden.py --write`` writes them below tests/data/golden/expected; the tests make them
anew and compare. Only `make_plan` and `write_summary` name modules of the package.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import runpy
import shutil
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden"
EXPECTED = GOLDEN / "expected"
KINDS = ("collective", "primitive", "training", "mixed")
RUNS = {kind: GOLDEN / "runs" / kind for kind in KINDS}
RESULTS = {kind: folder / "results.h5" for kind, folder in RUNS.items()}
"""Kind -> a results file."""
COMMANDS = ("run", "suite", "profile", "plan", "reduce", "show", "plot", "compare", "check",
            "advise", "validate", "list", "gen-config", "gen-data", "schema")
SWEEPS = (
    *((path, ranks) for path in (
        "config.json", "jobs/bluefield_ucc.yaml", "jobs/mistral7b_qlora.yaml",
        "jobs/resnet50_bert_gpt2_scaling.yaml", "jobs/transformer_large_v100.yaml",
        "tests/data/ddlb.json") for ranks in (1, 4, 16, 64)
      if (path, ranks) != ("jobs/resnet50_bert_gpt2_scaling.yaml", 64)),  # as 16, and slow
    *((f"tests/data/{name}", ranks) for name in ("torchscale.yaml", "candle.json")
      for ranks in (1, 4, 8)),
    *((f"tests/data/golden/configs/{name}.json", 2) for name in (
        *KINDS, *(f"stopped-{kind}" for kind in KINDS))))
"""Pairs of a sweep file and a number of ranks to plan it for."""
SHOWN_CASES = 20
CASE_FIELDS = ("case_id", "label", "kind", "skip", "needs", "estimate_s", "memory_bytes",
               "host_bytes", "timeout_s")
PLAIN = {"NO_COLOR": "1", "FORCE_COLOR": "", "TERM": "dumb", "MPLBACKEND": "agg",
         "_TYPER_FORCE_DISABLE_TERMINAL": "1"}
_FOLDER = "FOLDER"
_BOXES = re.compile("[\u2500-\u257f]+")
_SVG_TEXT = re.compile(r"<!-- (.*?) -->", re.DOTALL)
_AGAIN = re.compile(rf"\s+mpirun -np \d+ python -m hpcbench run --resume {_FOLDER}"
                    r"(?:\s+\(and\s+\d+\s+more:\s+hpcbench\s+show\s+-v\))?")
_READER = re.compile(r'(?<="hpcbench_version": ")[^"]*')


def hpcbench(*words: str, columns: int = 110) -> str:
    """Return what ``python -m hpcbench`` prints, run in this process from the repository root.

    pytest rewrites the modules of a package that has a plug-in, and runpy cannot run such ones.
    """
    printed, code, variables = io.StringIO(), None, PLAIN | {"COLUMNS": str(columns)}
    finders = [one for one in sys.meta_path if "pytest" not in type(one).__module__]
    with _in_root(), contextlib.redirect_stdout(printed), warnings.catch_warnings(), \
            mock.patch.object(sys, "meta_path", finders), \
            mock.patch.dict(os.environ, variables), mock.patch.object(sys, "argv", ["", *words]):
        warnings.filterwarnings("ignore", "'hpcbench.__main__' found in sys.modules")
        rewritten = sys.modules.pop("hpcbench.__main__", None)
        try:
            runpy.run_module("hpcbench", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
        finally:
            if rewritten is not None:
                sys.modules["hpcbench.__main__"] = rewritten
    return printed.getvalue() + (f"exit code {code}\n" if code else "")


@contextlib.contextmanager
def _in_root() -> Iterator[None]:
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


def make_plan(path: str, ranks: int) -> Any:
    """Return the plan of a sweep file, which no command prints with all its numbers."""
    from hpcbench.config.load import load_config
    from hpcbench.plan.expand import make_plan

    return make_plan(load_config(ROOT / path), ranks)


def write_summary(path: Path, folder: Path) -> None:
    """Write the summaries of a results file, which commands make of traces only."""
    from hpcbench.reduce.results_file import open_results
    from hpcbench.report.answer_lines import topic_results_of_file
    from hpcbench.report.summary import write_summary

    with open_results(path) as file:
        write_summary(file.results, folder, topic_results_of_file(file))


def plan_texts(path: str, ranks: int) -> dict[str, str]:
    """Return what is printed of a plan, and its cases with all that was foreseen of them."""
    plan = make_plan(path, ranks)
    lines = [json.dumps({name: getattr(case, name) for name in CASE_FIELDS})
             for case in plan.cases]
    head = {"plan_hash": plan.plan_hash, "world_size": plan.world_size, "cases": len(lines),
            "passes": plan.passes, "launches": plan.launches, "duplicates": plan.duplicates,
            "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest()}
    name = f"plans/{Path(path).stem}-{ranks}"
    return {f"{name}.txt": hpcbench("plan", path, "--world-size", str(ranks)),
            f"{name}.json": "\n".join([json.dumps(head), *lines[:SHOWN_CASES], ""])}


def results_texts(name: str) -> dict[str, str]:
    """Return what is printed, summarised and drawn of a results file."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copy(RESULTS[name], folder / "results.h5")
        shown, _, _ = hpcbench("show", made).rpartition("\n\n")
        drawn = hpcbench("plot", made, "--format", "svg")
        drawn += "".join(f"\n{path.name}\n{_figure_texts(path)}{path.with_suffix('.txt').name}\n"
                         f"{path.with_suffix('.txt').read_text('utf-8')}"
                         for path in sorted(folder.glob("plots/*.svg")))
        write_summary(folder / "results.h5", folder)
        texts = {"show.txt": shown, "figures.txt": drawn, **_summaries(folder)}
    return _named(name, folder, texts)


def reduced_texts(name: str, folder: Path) -> dict[str, str]:
    """Return what is printed and summarised of a run's traces, reduced anew in ``folder``.

    Figures are made, not painted. Findings of that version had their share in the message alone.
    """
    shutil.copytree(RUNS[name], folder, ignore=shutil.ignore_patterns("results.h5"))
    texts = _reduced(folder)
    begin, end, shown = texts["show.txt"].partition("report.html\n")
    summaries = {file: re.sub(r',\s+"share": [\d.e-]+(?=\s+})', "", text)
                 for file, text in _summaries(folder).items()}
    return _named(name, folder, {
        "show.txt": shown, "reduced.txt": begin + end + texts["reduced.txt"], **summaries})


def stopped_texts(kind: str, parent: Path) -> dict[str, str]:
    """Return what is printed and summarised of the traces or journals of a stopped run."""
    folder = unpacked(kind, parent)
    texts = {**_reduced(folder), "summary.csv": _summaries(folder)["summary.csv"]}
    return _named(f"stopped-{kind}", folder, texts)


def unpacked(kind: str, parent: Path) -> Path:
    """Return the folder of a stopped run, as its job left it, in ``parent``."""
    with tarfile.open(GOLDEN / "interrupted" / f"{kind}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(parent)
    return parent / kind


def _reduced(folder: Path) -> dict[str, str]:
    with mock.patch("matplotlib.figure.Figure.savefig", _blank):
        printed = hpcbench("reduce", str(folder))
    shown, _, last = printed.rpartition("\n\n")
    return {"show.txt": shown, "reduced.txt": last}


def _blank(figure: object, target: Path | io.StringIO | io.BytesIO, **_: object) -> None:
    """Stand in for drawing, which takes most of the time and is tested elsewhere."""
    if isinstance(target, Path):
        target.touch()
    elif isinstance(target, io.StringIO):
        target.write('<svg xmlns="http://www.w3.org/2000/svg"/>')


def _named(name: str, folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts by path, without what differs from reading to reading: place and version."""
    return {f"{name}/{file}": _AGAIN.sub(
        lambda found: f" {' '.join(found[0].split())}",  # it wraps as the place's name is long
        _READER.sub("VERSION", text.replace(str(folder), _FOLDER))) for file, text in texts.items()}


def _summaries(folder: Path) -> dict[str, str]:
    return {file: (folder / file).read_text("utf-8") for file in ("summary.json", "summary.csv")}


def _figure_texts(path: Path) -> str:
    """Return the texts of a figure, each of which stands in the file as a comment, too."""
    return "".join(f"  {unescape(text)}\n" for text in _SVG_TEXT.findall(path.read_text("utf-8")))


def command_texts() -> dict[str, str]:
    """Return what the commands say of themselves."""
    helps = {"help": _help(), **{f"help-{name}": _help(name) for name in COMMANDS}}
    return {**{f"commands/{name}.txt": text for name, text in helps.items()},
            "commands/list.txt": hpcbench("list", "--no-probe"),
            "commands/schema.json": hpcbench("schema")}


def _help(*words: str) -> str:
    """Return a command's help, one line an option, without boxes and wrapping."""
    told = hpcbench(*words, "--help", columns=1000)
    lines = (" ".join(_BOXES.sub(" ", line).split()) for line in told.splitlines())
    return "\n".join([*filter(None, lines), ""])


def every_text() -> Mapping[str, Callable[[], dict[str, str]]]:
    """Return name -> what makes a group of texts."""
    plans = {f"{path}-{ranks}": partial(plan_texts, path, ranks) for path, ranks in SWEEPS}
    return {**plans, **{name: partial(results_texts, name) for name in RESULTS},
            **{f"{name}, reduced": partial(_elsewhere, reduced_texts, name) for name in RUNS},
            **{f"{name}, stopped": partial(_elsewhere, stopped_texts, name) for name in KINDS},
            "commands": command_texts}


def _elsewhere(make: Callable[[str, Path], dict[str, str]], name: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as made:
        return make(name, Path(made) / name)


def main() -> None:
    """Write the texts, or tell which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write them instead of comparing")
    write = parser.parse_args().write
    for make in every_text().values():
        for name, text in make().items():
            path = EXPECTED / name
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            elif not path.exists() or path.read_text("utf-8") != text:
                print(f"differs: {name}")


if __name__ == "__main__":
    main()
