"""A case that leaves torch patched is told from torch that wraps its own functions."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hpcbench.backends.process_state import changed, process_state


def test_what_torch_puts_in_the_place_of_its_own_is_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = process_state()
    (folder,) = map(Path, torch.__path__)
    names: dict[str, object] = {}
    exec(compile("def wrapper(*seed): pass", str(folder / "_dynamo/eval_frame.py"), "exec"), names)
    monkeypatch.setattr(torch, "manual_seed", names["wrapper"])
    assert changed(before, process_state()) == ""

    @functools.wraps(dist.all_reduce)
    def own(*tensors: object) -> None:
        pass

    monkeypatch.setattr(dist, "all_reduce", own)
    assert changed(before, process_state()) == "torch.distributed.all_reduce"
