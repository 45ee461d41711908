"""Named streams: the same integers everywhere, uniform, and none of another's business."""

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdout.seeds import Stream, stream


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


def test_the_first_values_are_pinned():
    # Changing any of these changes every committee, batch and shard ever drawn from a seed.
    first = stream(0, "committee", 1)
    assert [first.below(1000) for _ in range(8)] == [326, 591, 311, 102, 978, 26, 921, 803]
    assert stream(7, "byzantine").sample(range(20), 6) == [2, 10, 15, 12, 6, 5]
    assert stream(0, "batch", 1, 0, 3).generator_seed() == 5_497_926_226_027_018_955


def test_a_stream_is_sha256_in_counter_mode_over_the_name():
    key = hashlib.sha256(b"(5, 'purpose', 3)").digest()
    words = []
    for counter in range(3):
        block = hashlib.sha256(key + counter.to_bytes(8, "little")).digest()
        words += [int.from_bytes(block[i : i + 8], "little") for i in (0, 8, 16, 24)]
    drawn = stream(5, "purpose", 3)
    assert [drawn.below(1 << 64) for _ in range(12)] == words


@pytest.mark.parametrize("bound", [2, 3, 7, 10, 97])
def test_draws_below_a_bound_are_uniform(bound):
    source, draws = stream(11, "uniform", bound), 20_000
    counts = [0] * bound
    for _ in range(draws):
        counts[source.below(bound)] += 1
    # Mean bound - 1, deviation sqrt(2 (bound - 1)): five deviations are never seen by chance.
    limit = (bound - 1) + 5 * (2 * (bound - 1)) ** 0.5 + 5
    assert chi_square(counts, draws / bound) < limit, counts


def test_a_bound_that_does_not_divide_the_words_throws_the_excess_away():
    # Of 3/4 of the range, a plain remainder would hit the lower third twice as often.
    bound = 3 * (1 << 62)
    source = stream(3, "rejection")
    low = sum(source.below(bound) < 1 << 62 for _ in range(3_000))
    assert 850 < low < 1150


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_ordered_sample_is_equally_likely(count):
    source, draws = stream(4, "sample", count), 12_000
    outcomes = dict.fromkeys(itertools.permutations("abcd", count), 0)
    for _ in range(draws):
        outcomes[tuple(source.sample("abcd", count))] += 1
    k = len(outcomes)
    assert chi_square(outcomes.values(), draws / k) < (k - 1) + 5 * (2 * k) ** 0.5, outcomes


@given(st.integers(), st.integers(0, 60), st.data())
def test_a_sample_never_repeats_and_leaves_the_items_alone(seed, size, data):
    count = data.draw(st.integers(0, size))
    items = list(range(100, 100 + size))
    drawn = stream(seed, "x").sample(items, count)
    assert len(drawn) == len(set(drawn)) == count
    assert set(drawn) <= set(items)
    assert items == list(range(100, 100 + size))


def test_a_sample_of_everything_is_a_shuffle():
    drawn = stream(0, "shuffle").sample(range(50), 50)
    assert sorted(drawn) == list(range(50))
    assert drawn != list(range(50))


def test_one_outcome_is_certain():
    source = stream(0, "certain")
    assert [source.below(1) for _ in range(10)] == [0] * 10


@given(st.integers(), st.text(), st.integers())
def test_the_same_name_gives_the_same_stream(seed, word, number):
    first, second = stream(seed, word, number), stream(seed, word, number)
    assert [first.below(1 << 64) for _ in range(9)] == [second.below(1 << 64) for _ in range(9)]


def test_other_names_give_other_streams():
    names = [
        (0,),
        (1,),
        (0, "a"),
        (0, "b"),
        (0, "a", 1),
        (0, "a1"),
        (0, "a", "1"),
        (0, "a", 11),
        (0, "a", 1, 1),
        (0, "", "a"),
        (0, "a', 1"),
        (-1, "a"),
    ]
    firsts = [stream(*name).below(1 << 64) for name in names]
    assert len(set(firsts)) == len(names)


def test_streams_of_neighbouring_names_are_not_correlated():
    pairs = [0, 0, 0, 0]
    for n in range(4_000):
        pairs[2 * stream(9, "round", n).below(2) + stream(9, "round", n + 1).below(2)] += 1
    assert chi_square(pairs, 1_000) < 25, pairs


def test_drawing_from_one_stream_moves_no_other():
    alone = [stream(1, "b").below(1 << 32) for _ in range(5)]
    other, here = stream(1, "a"), stream(1, "b")
    other.sample(range(100), 40)
    assert here.below(1 << 32) == alone[0]


def test_generator_seeds_fit_a_signed_integer_of_64_bits():
    source = stream(6, "seeds")
    seeds = [source.generator_seed() for _ in range(500)]
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert max(seeds) > 1 << 62
    assert len(set(seeds)) == 500


@pytest.mark.parametrize("bound", [0, -1])
def test_a_draw_without_outcomes_is_refused(bound):
    with pytest.raises(ValueError, match=f"at least one outcome; got bound={bound}"):
        stream(0).below(bound)


@pytest.mark.parametrize("count", [-1, 4])
def test_a_sample_that_cannot_be_drawn_is_refused(count):
    with pytest.raises(ValueError, match=f"cannot draw {count} of 3 items without repetition"):
        stream(0).sample("abc", count)


def test_an_empty_sample_is_no_draw():
    source = Stream(b"name")
    assert source.sample([], 0) == source.sample("abc", 0) == []
    assert source.below(1 << 64) == Stream(b"name").below(1 << 64)
