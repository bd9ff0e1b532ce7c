"""Large models beside each other in real groups: equal layouts agree, mistakes are found."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from launcher import UNCOLLECTED, MpiLauncher

pytestmark = pytest.mark.mpi

ON_FINGERPRINTS = Path(__file__).with_name("on_fingerprints.py")
TESTS = Path(__file__).parents[1]
MISTAKES = {"scaled": "gradients", "swapped": "gradients", "not exchanged": "gradients",
            "not updated": "updates"}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_layouts_agree_but_for_those_with_a_mistake(mpirun: MpiLauncher, ranks: int) -> None:
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS, TESTS / "unit")))
    command = [mpirun.program("python"), "-c", UNCOLLECTED, str(ON_FINGERPRINTS)]
    done = mpirun.run(ranks, command=command, env={"PYTHONPATH": path}, timeout=90).check()
    told: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            told[json.loads(line)["label"]].append(json.loads(line))
    for label, found in told.items():
        for one in found:
            assert not one["missing"], one
            assert (one["n_wrong"] > 0) == (label in MISTAKES), one
            assert one["what"] == MISTAKES[label] if label in MISTAKES else one["share"] < 1, one
    assert told.keys() >= {*MISTAKES, "single", "data", "zero1", "fsdp", "tensor", "pipeline"}
