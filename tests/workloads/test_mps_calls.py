"""The calls for Apple's GPU, held against the torch that is installed; here is no such GPU."""

from __future__ import annotations

import inspect

import pytest
import torch

from hpcbench.backends.devices import out_of_memory
from hpcbench.backends.facts import mps_facts
from hpcbench.kinds.training.run.reference import in_fp64


def test_torch_has_what_is_called() -> None:
    assert "enable_timing" in inspect.signature(torch.mps.Event).parameters
    assert [*inspect.signature(torch.mps.Event.elapsed_time).parameters] == ["self", "end_event"]
    for name in ("synchronize", "empty_cache", "driver_allocated_memory",
                 "recommended_max_memory"):
        assert not inspect.signature(getattr(torch.mps, name)).parameters
    for name in ("record", "synchronize"):
        assert [*inspect.signature(getattr(torch.mps.Event, name)).parameters] == ["self"]


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is a GPU of Apple's here")
def test_a_machine_without_one_states_why() -> None:
    facts = mps_facts()
    assert facts["reason"] == facts["without_bf16"]
    assert "built without it" in facts["reason"] or "no GPU of Apple's" in facts["reason"]


def test_the_reference_is_computed_where_there_is_fp64() -> None:
    assert in_fp64(torch.device("mps")) == torch.device("cpu") == in_fp64(torch.device("cpu"))
    assert in_fp64(torch.device("cuda", 1)) == torch.device("cuda", 1)


def test_its_memory_errors_are_known() -> None:
    assert out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9.0 GB)"))
    assert not out_of_memory(RuntimeError("MPS backend is not available"))
