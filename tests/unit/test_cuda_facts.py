"""The package against what torch's CUDA build has, by facts stored in tests/data/cuda_wheel.json.

No such build is needed here. Where a test fails after a new use of torch, the facts may lack it:
``scripts/cuda_wheel FOLDER --write`` asks the build itself.
"""

from __future__ import annotations

import json
import re

import pytest

from cuda_wheel import STORED
from hpcbench.backends.availability import no_code_reason
from hpcbench.measurement.library_log import read_choices
from launcher import ROOT
from torch_names import recognised_texts, torch_names

FACTS = json.loads(STORED.read_text(encoding="utf-8"))
NAMES: dict[str, str] = FACTS["names"]
PRINTED_ELSEWHERE = {
    "hip error: ": "torch for ROCm",
    "statusallocfailed": "MIOpen",
    "status_memory_error": "rocBLAS",
}
"""Texts that are recognised and that no library of this build has, with who says them."""
PIECES = {"%s": "IB", "%d": "1", "%ld": "8", "%01d": "1", "%1d": "1", "%02d": "01"}


def test_the_facts_are_of_the_versions_that_are_installed() -> None:
    pinned = dict(line.partition(";")[0].split("==") for line
                  in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    versions = FACTS["versions"]
    assert versions["torch"].partition("+")[0] == pinned["torch"].strip()
    assert versions["triton"] == pinned["triton"].strip()
    assert versions["cuda"] and versions["nccl"]


def test_torch_for_cuda_has_what_the_package_names() -> None:
    assert torch_names().keys() - FACTS["defaults"].keys() - NAMES.keys() == set(), "ask for them"
    assert [name for name in torch_names() if NAMES.get(name) == "absent"] == []


def test_torch_for_cuda_takes_the_arguments_that_the_package_gives() -> None:
    refused = []
    for name, keywords in torch_names().items():
        parameters = re.findall(r"[\w*]+", NAMES.get(name, ""))
        if NAMES.get(name, "").startswith("(") and not any(
                parameter.startswith("**") for parameter in parameters):
            refused += [f"{name}({word}=)" for word in keywords - {*parameters}]
    assert refused == []


def test_a_library_contains_each_text_by_which_errors_are_recognised() -> None:
    texts = FACTS["texts"]
    assert recognised_texts() - texts.keys() == set(), "ask for them"
    assert {text for text in recognised_texts() if not texts[text]} <= PRINTED_ELSEWHERE.keys()


@pytest.mark.parametrize("line", FACTS["nccl_log"])
def test_each_line_of_this_nccl_is_read(line: str) -> None:
    filled = re.sub(r"(?<=[\w\])])(?:%s)+$", "", line)  # what follows a transport may be empty
    for piece, value in PIECES.items():
        filled = filled.replace(piece, value)
    choices = read_choices(f"host:1:2 [0] NCCL INFO {filled} 0 1\n")
    if via := re.search(r" via (\w+(?:/[A-Za-z ]+)?)", filled):
        assert choices.transport and choices.transport[0].startswith(via[1].rstrip())
    elif "Bytes ->" in line:
        assert choices.algorithm
        assert choices.channels or "nchannels" not in line and "channel{" not in line
    else:
        assert choices.channels


@pytest.mark.parametrize(("capability", "needs"), [
    ((7, 0), "cu126"), ((7, 5), None), ((8, 0), None), ((8, 6), None), ((9, 0), None),
    ((10, 0), None), ((12, 0), None),
])
def test_which_gpus_the_pinned_build_has_code_for(
    capability: tuple[int, int], needs: str | None,
) -> None:
    reason = no_code_reason(capability, FACTS["architectures"].split(), FACTS["versions"]["torch"])
    assert reason is None if needs is None else reason and f"whl/{needs}" in reason


@pytest.mark.parametrize(("where", "field"), [
    ("nccl_options", "config"), ("nccl_options.config", "max_ctas")])
def test_nccl_has_an_option_for_how_many_blocks_it_may_take(where: str, field: str) -> None:
    assert field in FACTS[where].split()
