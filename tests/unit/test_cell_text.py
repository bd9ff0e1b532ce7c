"""A cell shows as many digits as the interval of its number allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.units import format_seconds, round_bytes, three_digits
from hpcbench.views.table import (
    Range,
    Show,
    WithInterval,
    cell_text,
    format_measured,
    format_number,
    time_texts,
)


@pytest.mark.parametrize(("low", "value", "high", "shown"), [
    (2905.4, 3453.3, 3885.9, ("2910", "3450", "3890")),
    (19.47, 19.65, 19.94, ("19.47", "19.65", "19.94")),
    (16.30, 16.59, 19.90, ("16.3", "16.6", "19.9")),
    (405.2, 886.43, 1780.4, ("410", "890", "1780")),
    (15.9, 15.93, 48.1, ("16", "16", "48")),
    (0.00123, 0.00125, 0.00131, ("0.00123", "0.00125", "0.00131")),
    (3.0, 3.2, 4000.0, ("3.0", "3.2", "4000")),
    (5.0, 5.0, 5.0, ("5.00", "5.00", "5.00"))])
def test_half_the_interval_keeps_two_digits(
    low: float, value: float, high: float, shown: tuple[str, str, str],
) -> None:
    assert tuple(format_measured(one, low, high) for one in (low, value, high)) == shown


def test_a_median_and_its_interval_have_the_same_last_digit() -> None:
    cell = WithInterval(3453.3e-6, 2905.4e-6, 3885.9e-6)
    assert cell_text(cell, Show.US) == "3450"
    assert cell_text(Range(cell.low, cell.high), Show.US) == "2910..3890"
    assert cell_text(cell, Show.MS) == "3.45"
    assert cell_text(Range(0.1, 0.2, 0.1234), Show.PERCENT) == "12.3 (10.0..20.0)"


def test_without_an_interval_times_and_rates_have_three_digits() -> None:
    assert [cell_text(time_s, Show.US) for time_s in (10794.9e-6, 587.51e-6, 41.28e-6)] == [
        "10800", "588", "41.3"]
    assert cell_text(123.45e9, Show.GB_PER_S) == "123"


def test_a_time_in_its_own_unit_has_the_digits_of_a_table() -> None:
    assert time_texts(590e-6, 494e-6, 776e-6) == ("590 us", "490..780")
    assert time_texts(1.23e-3, None, None) == ("1.23 ms", "-")


@given(st.floats(1e-6, 1e9), st.floats(0, 1e9), st.floats(0, 1e9))
def test_what_is_left_out_is_less_than_the_interval(
    value: float, below: float, above: float,
) -> None:
    low, high = max(value - below, 0.0), value + above
    text = format_measured(value, low, high)
    half = (high - low) / 2
    assert len(text) <= len(format_number(value))
    assert abs(float(text) - float(format_number(value))) <= max(0.06 * half, 0.06 * value)
    assert math.isfinite(float(text)) and float(text) > 0


@pytest.mark.parametrize(("value", "text"), [
    (1402.6, "1400"), (3352.0, "3350"), (1.23e7, "12300000"), (0.08341, "0.0834"), (2.5, "2.5"),
    (-999.9, "-1000"), (1e-5, "0.00001"), (0.0, "0"), (math.nan, "nan")])
def test_numbers_in_sentences_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_durations_and_sizes_have_no_exponent_either() -> None:
    found = [format_seconds(one) for one in (1234.5, 0.9996, 1.5e-5)]
    assert found == ["1230 s", "1000 ms", "15 us"]
    assert round_bytes(1023 * 2**20 + 2**19) == "1020 MiB"
