"""docs/faults.md names every fault that there is to make, and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hpcbench.config.axes import FAULTS
from hpcbench.plan.case import STATUSES
from unit.test_checks_doc import rows as checks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
REQUIRED = (
    "killed", "crashed", "exception, exit", "out of memory", "killed by the kernel for memory",
    "stopped, hangs", "another operation than planned", "wrong result", "slow rank",
    "crash after success", "hang or exception on backend mpi", "SIGTERM, SIGINT of mpirun",
    "SIGUSR1", "SIGKILL of mpirun", "SIGKILL of a supervisor", "SIGKILL of everything", "MPI_Abort",
    "a case that ends the job twice", "Slurm's time limit, signal before it",
    "Slurm's time limit itself, scancel", "node down, requeue",
    "resumed with another plan, software or number of ranks", "duplicate rank",
    "world size mismatch, lonely ranks", "mixed versions", "one node cannot spawn",
    "backend missing", "port taken", "wrong interface", "environment leak",
    "fork inside an MPI process",
    "secrets in the environment", "read-only folder, file in the way", "reused output folder",
    "half a character in a sweep file", "a console of ASCII", "a file system that syncs no folders",
    "plots or report that cannot be drawn or written", "no further thread for telemetry",
    "disk full while cases run", "disk full at the end", "results folder removed", "corrupt trace",
    "truncated trace", "foreign trace", "missing trace", "link down",
    "node cut off, from MPI too", "limited link", "lossy link", "no shared file system",
    "shifted clock", "clock that steps or lies",
)


def made() -> dict[str, list[str]]:
    """Return, of each row of faults that are made, its name and cells."""
    found = [line[2:-2].split(" | ") for line in TEXT.splitlines()
             if line.startswith("| ") and not line.startswith("| fault")]
    return {re.sub(r" \(`.*", "", cells[0]): cells for cells in found if len(cells) == 5}


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_that_is_wanted_is_there_with_its_cells_filled() -> None:
    table = made()
    assert set(REQUIRED) <= set(table), set(REQUIRED) - set(table)
    assert all(cell.strip() for cells in table.values() for cell in cells)


def test_every_test_that_is_named_exists() -> None:
    for fault, (*_, tests) in made().items():
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests)
        assert len(named) == tests.count("`") // 2 > 0, fault
        for path, name in named:
            assert name in functions_of(ROOT / "tests" / path), (fault, name)


def test_every_kind_status_and_code_of_a_fault_is_told() -> None:
    first_cells = "".join(cells[0] for cells in made().values())
    kinds = set(re.findall(r"`(\w+)`", first_cells))
    assert kinds == set(FAULTS)
    assert {status for status in STATUSES if f"`{status}`" in TEXT} == set(STATUSES)
    told = set(re.findall(r"HB\d{3}", TEXT))
    costly = {code for code, scopes, _ in checks() if scopes != {"note"}}
    assert costly <= told <= {code for code, _, _ in checks()}, costly - told
