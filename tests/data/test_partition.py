"""Who holds which rows."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdout.data.partitions import DIVIDING, KINDS, partition, samples_max
from holdout.errors import DataError, DottedNameError, PluginError

DRAWN = [kind for kind in KINDS if kind != "file"]
OF_ITS_OWN = [kind for kind in DRAWN if kind not in DIVIDING]

LABELS = np.random.Generator(np.random.Philox(1)).integers(0, 10, 3000)


@st.composite
def problems(draw):
    """Labels of any imbalance, classes that do not occur included, and a demand that fits."""
    classes = draw(st.integers(2, 6))
    labels = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=60)))
    return {
        "labels": labels,
        "classes": classes,
        "workers": draw(st.integers(1, 4)),
        "samples_per_worker": draw(st.integers(1, len(labels))),
        "seed": draw(st.integers(0, 5)),
        "alpha": draw(st.sampled_from([1e-300, 1e-3, 0.5, 100.0, 1e308])),
    }


def label_counts(held, labels=LABELS, classes=10):
    return np.array([np.bincount(labels[rows], minlength=classes) for rows in held])


def skew(alpha):
    held = partition(
        "dirichlet",
        LABELS,
        workers=40,
        samples_per_worker=100,
        classes=10,
        seed=0,
        alpha=alpha,
    )
    return label_counts(held).max(axis=1).mean()


@pytest.mark.parametrize("kind", ["iid", "balanced", "dirichlet"])
@given(problem=problems())
def test_every_worker_holds_exactly_the_asked_number_of_different_rows(kind, problem):
    held = partition(kind, **problem)
    assert len(held) == problem["workers"]
    for rows in held:
        assert rows.dtype == np.int64
        assert len(set(rows.tolist())) == len(rows) == problem["samples_per_worker"]
        assert rows.min() >= 0
        assert rows.max() < len(problem["labels"])


@given(problem=problems(), labels_per_worker=st.integers(1, 6))
def test_shards_hold_exactly_the_asked_number_of_labels_as_equally_as_possible(
    problem, labels_per_worker
):
    sizes = np.sort(np.bincount(problem["labels"]))
    sizes = sizes[sizes > 0]
    samples = problem["samples_per_worker"]
    assume(labels_per_worker <= min(len(sizes), samples))
    assume(samples <= sizes[:labels_per_worker].sum())
    for rows in partition("shards", **problem, labels_per_worker=labels_per_worker):
        assert len(set(rows.tolist())) == samples
        labels, counts = np.unique(problem["labels"][rows], return_counts=True)
        assert len(labels) == labels_per_worker
        available = np.bincount(problem["labels"])[labels]
        assert_level(counts, available)


@given(problem=problems())
def test_balanced_takes_as_equally_as_the_classes_allow(problem):
    available = np.bincount(problem["labels"], minlength=problem["classes"])
    for rows in partition("balanced", **problem):
        counts = np.bincount(problem["labels"][rows], minlength=problem["classes"])
        assert_level(counts, available)


def assert_level(counts, available):
    """No class that has rows left is more than one behind another."""
    for count, room in zip(counts, available, strict=True):
        assert count == room or count >= counts.max() - 1


def test_balanced_is_exactly_equal_when_it_can_be():
    held = partition("balanced", LABELS, workers=5, samples_per_worker=200, classes=10, seed=3)
    assert (label_counts(held) == 20).all()


def test_the_classes_that_get_one_more_are_drawn():
    held = partition("balanced", LABELS, workers=30, samples_per_worker=13, classes=10, seed=3)
    extra = label_counts(held) - 1
    assert (extra.sum(axis=1) == 3).all()
    assert (extra.sum(axis=0) > 0).all()


@pytest.mark.parametrize("kind", DRAWN)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_rows(kind):
    def held(seed):
        rows = partition(kind, LABELS, workers=3, samples_per_worker=50, classes=10, seed=seed)
        return [part.tobytes() for part in rows]

    assert held(7) == held(7)
    assert set(held(7)).isdisjoint(held(8))
    assert len(set(held(7))) == 3


@pytest.mark.parametrize("kind", OF_ITS_OWN)
def test_a_workers_rows_do_not_depend_on_the_number_of_workers(kind):
    few = partition(kind, LABELS, workers=2, samples_per_worker=50, classes=10, seed=0)
    many = partition(kind, LABELS, workers=9, samples_per_worker=50, classes=10, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(few, many, strict=False))


@pytest.mark.parametrize("kind", DRAWN)
def test_a_workers_rows_are_not_in_order_of_label(kind):
    (rows,) = partition(kind, LABELS, workers=1, samples_per_worker=200, classes=10, seed=0)
    assert (np.diff(LABELS[rows]) < 0).any()


def test_a_smaller_alpha_is_more_skewed():
    assert skew(0.05) > 1.3 * skew(0.5) > 1.3 * skew(50.0)
    assert skew(1e-300) == 100
    assert skew(1e6) == pytest.approx(10, abs=1)


def test_when_a_class_runs_short_the_others_fill_up():
    labels = np.array([0] * 3 + [1] * 50 + [2] * 50)
    held = partition(
        "dirichlet", labels, workers=50, samples_per_worker=60, classes=3, seed=0, alpha=0.01
    )
    counts = label_counts(held, labels, 3)
    assert (counts.sum(axis=1) == 60).all()
    assert (counts <= [3, 50, 50]).all()


def test_taking_every_row_works_whatever_the_kind():
    labels = np.repeat(np.arange(4), 5)
    for kind in OF_ITS_OWN:
        held = partition(
            kind,
            labels,
            workers=2,
            samples_per_worker=20,
            classes=4,
            seed=0,
            labels_per_worker=4,
        )
        assert all(sorted(rows) == list(range(20)) for rows in held)


def test_iid_reaches_every_row():
    held = partition("iid", LABELS, workers=60, samples_per_worker=500, classes=10, seed=0)
    assert len(np.unique(np.concatenate(held))) == len(LABELS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "alphabetic"}, "iid, balanced, dirichlet, shards"),
        ({"samples_per_worker": 3001}, "samples_per_worker=3001 of 3000 rows"),
        ({"samples_per_worker": 0}, "samples_per_worker=0"),
        ({"workers": 0}, "workers=0"),
        ({"classes": 5}, "got 9, classes=5"),
        ({"labels": LABELS - 1}, "got -1, classes=10"),
        ({"labels": LABELS / 2}, "float64"),
        ({"labels": LABELS.reshape(-1, 2)}, r"\(1500, 2\)"),
        ({"kind": "dirichlet", "alpha": 0.0}, "alpha=0.0"),
        ({"kind": "dirichlet", "alpha": float("nan")}, "alpha=nan"),
        ({"kind": "dirichlet", "alpha": float("inf")}, "alpha=inf"),
        ({"kind": "shards", "labels_per_worker": 11}, "labels_per_worker=11, 10 labels"),
        ({"kind": "shards", "labels_per_worker": 0}, "labels_per_worker=0"),
        ({"kind": "shards", "samples_per_worker": 1}, "samples_per_worker=1"),
        ({"kind": "shards", "samples_per_worker": 2000}, "in any 2 labels"),
    ],
)
def test_an_impossible_partition_is_refused_with_rule_and_values(change, message):
    good = {
        "kind": "iid",
        "labels": LABELS,
        "workers": 2,
        "samples_per_worker": 100,
        "classes": 10,
        "seed": 0,
    }
    with pytest.raises(DataError, match=message):
        partition(**(good | change))


@pytest.mark.parametrize("kind", DIVIDING)
@given(problem=problems(), gamma=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_rows_that_are_divided_belong_to_one_worker_each(kind, problem, gamma):
    rows, workers = len(problem["labels"]), problem["workers"]
    assume(rows >= workers)
    problem["samples_per_worker"] = 1 + problem["samples_per_worker"] % (rows // workers)
    held = partition(kind, **problem, gamma=gamma)
    together = np.concatenate(held)
    assert len(held) == workers
    assert all(len(part) for part in held)
    assert len(set(together.tolist())) == len(together) == workers * problem["samples_per_worker"]
    if kind != "quantity":
        assert {len(part) for part in held} == {problem["samples_per_worker"]}


def test_the_extreme_partition_gives_each_worker_a_piece_of_the_rows_by_label():
    labels = np.repeat(np.arange(4), 25)
    held = partition("extreme", labels, workers=4, samples_per_worker=25, classes=4, seed=3)
    assert label_counts(held, labels, 4).tolist() == (25 * np.eye(4, dtype=int)).tolist()


@pytest.mark.parametrize(("gamma", "own"), [(0.0, 100), (0.5, 62.5), (1.0, 25)])
def test_gamma_is_the_share_of_rows_that_is_drawn_at_random(gamma, own):
    labels = np.repeat(np.arange(4), 1000)
    held = partition(
        "gamma", labels, workers=4, samples_per_worker=1000, classes=4, seed=0, gamma=gamma
    )
    counts = label_counts(held, labels, 4)
    # Of the rows by label, nearly all have one label; of the others, a quarter.
    assert counts.max(axis=1) / 10 == pytest.approx([own] * 4, abs=5)


def test_a_smaller_alpha_makes_sizes_more_unequal():
    def spread(alpha):
        held = partition(
            *("quantity", LABELS),
            workers=20,
            samples_per_worker=100,
            classes=10,
            seed=0,
            alpha=alpha,
        )
        sizes = [len(rows) for rows in held]
        assert sum(sizes) == 2000
        return np.std(sizes)

    assert spread(0.1) > 1.5 * spread(1.0) > 4 * spread(100.0)


@pytest.mark.parametrize("kind", DRAWN)
def test_as_many_rows_as_there_can_be_are_given_and_one_more_is_refused(kind):
    labels = np.arange(90) % 3
    given = {"workers": 4, "classes": 3, "labels_per_worker": 2}
    most = samples_max(kind, labels, **given)
    partition(kind, labels, samples_per_worker=most, seed=0, **given)
    with pytest.raises(DataError, match=f"samples_per_worker={most + 1}"):
        partition(kind, labels, samples_per_worker=most + 1, seed=0, **given)


def from_file(path, rows=5, workers=2):
    labels = np.zeros(rows, dtype=np.int64)
    return partition(
        *("file", labels), workers=workers, samples_per_worker=1, classes=2, seed=0, file=path
    )


def test_a_file_says_who_holds_what(tmp_path):
    (tmp_path / "split.json").write_text("[[4, 0], [0, 1, 2]]")
    np.savez(tmp_path / "split.npz", **{"0": np.array([4, 0]), "1": np.array([0, 1, 2], np.uint8)})
    for name in ("split.json", "split.npz"):
        assert [rows.tolist() for rows in from_file(tmp_path / name)] == [[4, 0], [0, 1, 2]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[[0], [1], [2]]", "must hold a shard for each of 2 workers; has 3"),
        ("[[0], []]", "worker 1 needs at least one row"),
        ("[[0], [5]]", "worker 1 may hold rows from 0 to 4; got 5"),
        ("[[-1], [1]]", "worker 0 may hold rows from 0 to 4; got -1"),
        ("[[0, 0], [1]]", "worker 0 holds a row twice"),
        ("[[true], [1]]", "worker 0 needs whole numbers; got True"),
        ("[[1.0], [1]]", "worker 0 needs whole numbers; got 1.0"),
        ("[[[0]], [1]]", "worker 0 needs whole numbers; got \\[0\\]"),
        ("[[99999999999999999999], [1]]", "worker 0 needs whole numbers|row numbers"),
        ('{"0": [1]}', "must be a list with a list of row numbers for each worker"),
        ("[0, 1]", "must be a list with a list of row numbers for each worker"),
        ("[[0], [1]", "not a readable JSON file"),
        ("[" * 100_000, "not a readable JSON file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, content, problem):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(DataError, match=problem) as caught:
        from_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"0": np.array([0]), "2": np.array([1])}, "must hold arrays named 0, 1"),
        ({"0": np.array([0]), "1": np.array([0.5])}, "worker 1 needs whole numbers"),
        ({"0": np.array([0]), "1": np.array([[1]])}, "in a plain list; got shape"),
        ({"0": np.array([0]), "1": np.array([object()])}, "expected plain numbers"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(tmp_path, arrays, problem):
    np.savez(tmp_path / "split.npz", **arrays)
    with pytest.raises(DataError, match=problem):
        from_file(tmp_path / "split.npz")
    (tmp_path / "split.npz").write_bytes(b"PK junk")
    with pytest.raises(DataError, match="not a readable npz file"):
        from_file(tmp_path / "split.npz")
    with pytest.raises(DataError, match="cannot be read"):
        from_file(tmp_path / "nowhere.json")


@pytest.fixture
def own_split(tmp_path, monkeypatch):
    """A module with partitions of the user's own."""
    (tmp_path / "own_split.py").write_text(
        "def halves(labels, workers, rng):\n"
        "    order = rng.permutation(len(labels))\n"
        "    return [order[i::workers] for i in range(workers)]\n"
        "def short(labels, workers, rng):\n"
        "    return [[0]]\n"
        "def fails(labels, workers, rng):\n"
        "    return 1 / 0\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_split"


def test_own_code_says_who_holds_what(own_split):
    def held(name, seed=0):
        return partition(
            f"{own_split}:{name}", LABELS, workers=7, samples_per_worker=1, classes=10, seed=seed
        )

    assert sorted({len(rows) for rows in held("halves")}) == [428, 429]
    assert held("halves")[0].tolist() == held("halves")[0].tolist() != held("halves", 1)[0].tolist()
    with pytest.raises(DataError, match="must hold a shard for each of 7 workers; has 1"):
        held("short")
    with pytest.raises(PluginError, match="own_split:fails raised ZeroDivisionError"):
        held("fails")
    with pytest.raises(DataError, match="a partition must be callable; got int"):
        held("number")
    with pytest.raises(DottedNameError):
        held("nowhere")
