"""Which GPU a rank takes, whatever its launcher shows it, and whether torch has code for it."""

from __future__ import annotations

import pytest

from hpcbench.backends.availability import gpu_places, visible_gpus
from hpcbench.backends.kernels import no_code_reason, without_code

ALL = ("u0", "u1", "u2", "u3")


@pytest.mark.parametrize(("seen", "places"), [
    # every rank of a node sees all of its GPUs
    ([("a", ALL)] * 4 + [("b", ALL)] * 4, [0, 1, 2, 3, 0, 1, 2, 3]),
    # srun --gpus-per-task=1, --gpu-bind=single:1
    ([("a", ("u0",)), ("a", ("u1",)), ("b", ("u0",))], [0, 0, 0]),
    # srun --gpus-per-task=2
    ([("a", ("u0", "u1")), ("a", ("u2", "u3"))], [0, 0]),
    # pairs of ranks share pairs of GPUs, as --gpu-bind=closest does on two sockets
    ([("a", ("u0", "u1"))] * 2 + [("a", ("u2", "u3"))] * 2, [0, 1, 0, 1]),
    # a wrapper that turns the list, so that each rank's own comes first
    ([("a", ("u0", "u1")), ("a", ("u1", "u0"))], [0, 0]),
    # ranks that go round the nodes
    ([("a", ALL), ("b", ALL), ("a", ALL), ("b", ALL)], [0, 0, 1, 1]),
    # more ranks than GPUs, and a node without any
    ([("a", ("u0",)), ("a", ("u0",)), ("b", ())], [0, None, None]),
])
def test_every_rank_takes_one_of_its_own(
    seen: list[tuple[str, tuple[str, ...]]], places: list[int | None],
) -> None:
    assert gpu_places(seen) == places
    for count in range(len(seen)):  # a case on fewer ranks
        assert gpu_places(seen[:count]) == places[:count]


def test_a_gpu_has_one_name_in_all_processes_of_its_node() -> None:
    assert visible_gpus(["u2", "u0"], "2,0") == ("u2", "u0")
    assert visible_gpus(["", ""], "2,0") == ("GPU 2", "GPU 0")  # a driver that gives no UUIDs
    assert visible_gpus(["", ""], None) == visible_gpus(["", ""], "") == ("GPU 0", "GPU 1")
    assert visible_gpus(["", ""], "0,1,7") == ("GPU 0", "GPU 1")  # there is no GPU 7


@pytest.mark.parametrize(("capability", "architectures", "lacks"), [
    ((7, 0), ["sm_70", "sm_75"], False),
    ((7, 0), ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120"], True),
    ((8, 6), ["sm_75", "sm_80"], False),  # of the same major version, older
    ((8, 0), ["sm_75", "sm_86"], True),
    ((9, 0), ["sm_90a"], False),
    ((10, 0), ["sm_90a"], True),
    ((12, 0), ["sm_80", "compute_80"], False),  # PTX
    ((12, 0), ["sm_100"], True),
])
def test_code_for_a_gpu(
    capability: tuple[int, int], architectures: list[str], lacks: bool,
) -> None:
    assert without_code(capability, architectures) is lacks


def test_who_has_a_v100_is_told_which_build_has_code_for_it() -> None:
    reason = no_code_reason((7, 0), ["sm_75", "sm_80"], "2.13.0+cu130")
    assert reason is not None
    assert reason.startswith("torch 2.13.0+cu130 has no code for sm_70, only for sm_75, sm_80;")
    assert "https://download.pytorch.org/whl/cu126" in reason
    assert no_code_reason((7, 0), ["sm_70"], "2.13.0+cu126") is None
    assert no_code_reason((7, 0), [], "2.13.0+cpu") is None
    assert "newer torch" in str(no_code_reason((13, 0), ["sm_90"], "2.13.0"))
