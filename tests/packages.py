"""Packages beside hpcbench, for tests of plug-ins: built, installed into a folder, or made up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher import ROOT

PIP = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index",
       "--no-build-isolation", "--disable-pip-version-check")


def install(source: Path, folder: Path) -> Path:
    """Build a package and return the folder for PYTHONPATH in which it is installed."""
    shutil.copytree(source, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    target = folder / "target"
    done = subprocess.run([*PIP, "--target", str(target), str(folder / "source")], text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    return target


def offer(folder: Path, package: str, group: str, points: Mapping[str, str]) -> None:
    """Make up the facts of a package of version 0.1 with entry points of one group."""
    facts = folder / f"{package}-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items()), ""]
    (facts / "entry_points.txt").write_text("\n".join(lines))


def path_with(folder: Path) -> dict[str, str]:
    """Return the variables by which a process finds what is installed in a folder."""
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def hpcbench(folder: Path, *words: str) -> str:
    """Return what a command prints where the packages of a folder are installed."""
    done = subprocess.run(
        [sys.executable, "-m", "hpcbench", *words], text=True, capture_output=True, timeout=60,
        env={**os.environ, **path_with(folder)})
    assert done.returncode == 0, done.stderr
    return done.stdout
