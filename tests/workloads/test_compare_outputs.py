"""Outputs are compared element for element, and equal pieces by a shortcut with the same result."""

from __future__ import annotations

import pytest
import torch

from hpcbench.operations.data import _PIECE, compare

NAN = float("nan")


@pytest.mark.parametrize("count", [0, 1, _PIECE, _PIECE + 1, 2 * _PIECE + 5])
def test_equal_outputs_have_no_mismatch(count: int) -> None:
    whole = torch.arange(count, dtype=torch.float32)
    assert compare(whole.clone(), whole) is None
    assert compare(whole.to(torch.float64), whole) is None  # other dtypes: no shortcut


@pytest.mark.parametrize("at", [0, _PIECE - 1, _PIECE, 2 * _PIECE + 4])
def test_one_wrong_element_is_found_wherever_pieces_end(at: int) -> None:
    expected = torch.zeros(2 * _PIECE + 5)
    got = expected.clone()
    got[at] = 3
    found = compare(got, expected)
    assert found and (found.n_wrong, found.first_index, found.got) == (1, at, "3.0")
    assert found.n_elements == len(expected)


def test_wrong_elements_of_all_pieces_are_counted() -> None:
    expected = torch.zeros(3, _PIECE)
    found = compare(expected + 1, expected)
    assert found and (found.n_wrong, found.first_index) == (3 * _PIECE, 0)


@pytest.mark.parametrize("same", [False, True])
def test_nan_is_never_right(same: bool) -> None:
    expected = torch.tensor([1.0, NAN, 2.0])
    found = compare(expected if same else expected.clone(), expected)
    assert found and (found.n_wrong, found.first_index) == (1, 1)


def test_what_is_not_equal_may_still_be_close_enough() -> None:
    expected = torch.full((5,), 1.0)
    near = expected + torch.finfo(torch.float32).eps
    assert compare(near, expected, ulps=1) is None
    found = compare(near, expected)
    assert found and found.n_wrong == 5
