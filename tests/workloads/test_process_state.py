"""A case that leaves torch patched is told from torch that wraps its own functions."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hpcbench.backends.process_state import changed, process_state
from hpcbench.launch.start import Watchdog


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


def test_threads_of_a_case_are_left_behind_and_those_of_ours_are_not() -> None:
    before, over = process_state(), threading.Event()
    with Watchdog(60.0, lambda late_s: None):
        assert changed(before, process_state()) == ""
    left = threading.Thread(target=over.wait)
    left.start()
    assert changed(before, process_state()) == "Python's threads"
    over.set()
    left.join()
    assert changed(before, process_state()) == ""
