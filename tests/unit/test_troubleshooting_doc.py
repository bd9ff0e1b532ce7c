"""docs/troubleshooting.md: each row is reproduced by a test or a command, or has a source."""

from __future__ import annotations

import re

import pytest

from launcher import ROOT
from unit.test_faults_doc import functions_of

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
COLUMNS = ["symptom", "cause: check", "remedy"]
AREAS = ("Launchers", "Slurm", "Kubernetes and containers", "Network", "GPUs, NCCL and UCC",
         "Memory", "Cores, clocks and odd times", "Disks")
PROGRAMS = {"mpirun", "srun", "taskset"}
DATA = (ROOT / "tests/data/troubleshooting.txt").read_text(encoding="utf-8")
BASES = dict(line.split("\t") for line in DATA.splitlines() if not line.startswith("#"))
"""Symptom -> what the row rests on: a test, a command, or an official page."""


def lines() -> list[list[str]]:
    found = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in TEXT.splitlines()
             if line.startswith("| ")]
    return [cells for cells in found if cells != COLUMNS]


def test_every_area_has_rows_and_every_row_all_cells() -> None:
    assert re.findall(r"^## (.*)$", TEXT, re.MULTILINE) == list(AREAS)
    assert {cells[0] for cells in lines()} == set(BASES) and len(BASES) >= 25
    for cells in lines():
        assert len(cells) == len(COLUMNS) and all(cell.strip() for cell in cells), cells


@pytest.mark.parametrize("basis", BASES.values())
def test_every_row_is_reproduced_or_has_a_source(basis: str) -> None:
    if basis.startswith("source: "):
        assert re.fullmatch(r'source: "[^"]+", .+ (documentation|source code)', basis)
        return
    assert basis.startswith("reproduced: `")
    named = re.findall(r"`([^`]+)`", basis)[0]
    if "::" in named:
        path, name = named.split("::")
        assert name in functions_of(ROOT / "tests" / path)
    else:
        assert named.split()[0].rpartition("/")[2] in PROGRAMS


def test_a_symptom_is_listed_once() -> None:
    symptoms = [cells[0] for cells in lines()]
    assert len(symptoms) == len(set(symptoms))
