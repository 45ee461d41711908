"""Shares of workers: exact, written as they read, and whatever is none refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.shares import byzantine_count, read_share, write_share


def test_decimals_add_up_exactly():
    assert read_share(0.1) + read_share(0.2) == read_share(0.3)


@pytest.mark.parametrize(
    ("share", "workers", "count"),
    [(0.33, 100, 33), ("1/3", 100, 33), (0.29, 100, 29), (0.07, 100, 7), (33, 50, 33), (0, 9, 0)],
)
def test_the_number_of_liars_is_the_floor_of_the_share(share, workers, count):
    assert byzantine_count(read_share(share), workers) == count


@given(st.one_of(st.fractions(min_value=0, max_value=Fraction(999, 1000)), st.integers(1, 10**30)))
def test_a_share_is_written_so_that_it_reads_back_exactly(share):
    assert read_share(write_share(share)) == share


@given(st.floats(min_value=0, max_value=1, exclude_max=True))
def test_a_float_means_the_decimal_that_is_written(value):
    assert write_share(read_share(value)) == value


@pytest.mark.parametrize(
    "value",
    ["1e-9999", "1E+999999999", "1e1_000_0", "x", "", "1/0", "nan", "inf", None, True, [0.3], b"1"],
)
def test_what_is_no_share_is_refused_at_once(value):
    with pytest.raises(ValueError, match=r'must be a share such as 0\.33 or "1/3"'):
        read_share(value)


@pytest.mark.parametrize("value", [-0.1, "-1/3", -1])
def test_a_negative_share_is_refused(value):
    with pytest.raises(ValueError, match="must not be negative"):
        read_share(value)


@pytest.mark.parametrize("value", [1.5, "4/3", "100.5"])
def test_a_share_above_one_is_refused(value):
    with pytest.raises(ValueError, match="must be a share below 1, or a whole number"):
        read_share(value)


@pytest.mark.parametrize("value", [1.0, 2.0, 33.0])
def test_a_float_is_never_a_number_of_workers(value):
    with pytest.raises(ValueError, match="a share below 1, or a whole number"):
        read_share(value)
