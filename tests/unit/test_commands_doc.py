"""docs/commands.md has every command, every completed flag and every key of the JSON documents."""

from __future__ import annotations

import re
from dataclasses import replace

import typer

from hpcbench.cli import COMMANDS, app
from hpcbench.report.plan_lines import listing_document, plan_document
from launcher import ROOT
from results_factory import make_case, make_plan

TEXT = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
LONGEST_LINE, MOST_WORDS = 110, 25


def rows(head: str) -> dict[str, list[str]]:
    """Return the rows of the table with this first title: first cell -> names in the second."""
    table = TEXT.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in table]
    return {first.strip("`"): re.findall(r"`(\w+)`", re.sub(r" \([^)]*\)", "", " ".join(rest)))
            for first, *rest in cells}


def test_every_command_has_a_row() -> None:
    assert list(rows("command")) == list(COMMANDS)


def test_the_keys_of_the_documents_are_those() -> None:
    documents = rows("document")
    case = replace(make_case(), memory_error=0.1, note="tried")  # keys that are there if so
    plan = plan_document(make_plan((case,)))
    head = {"schema", "schema_version", "hpcbench_version"}
    assert set(documents["hpcbench.plan`, version 1"]) == set(plan) - head
    assert set(documents["its `totals"]) == set(plan["totals"])
    assert set(documents["each of its `cases"]) - {"null"} == set(plan["cases"][0])
    listing = listing_document(None, probe=False)
    assert set(documents["hpcbench.list`, version 1"]) == set(listing) - head


def test_flags_whose_values_are_completed_are_named() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    completed = {option for command in commands.values() for parameter in command.params
                 if getattr(parameter, "_custom_shell_complete", None) for option in parameter.opts}
    section = TEXT.partition("## Completion in a shell")[2].partition("## ")[0]
    assert len(completed) >= 6
    assert {name for name in completed if f"`{name}`" not in section} == set()


def test_the_page_is_plain() -> None:
    prose = [line for line in TEXT.splitlines() if not line.startswith(("|", "#", "    "))]
    assert not [line for line in prose if len(line) > LONGEST_LINE]
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", "\n".join(prose)):
        for sentence in re.split(r"(?<=[.?!:;])\s", " ".join(paragraph.split())):
            assert len(sentence.split()) <= MOST_WORDS, sentence
