"""Every rule through the same laws: a new rule is a new row of the table."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from tests.asking import called

from holdout import rules
from holdout.errors import InfeasibleError, MisuseError
from holdout.rules import PRE_AGGREGATIONS, RULES, mean


@dataclass(frozen=True)
class Case:
    """What the laws must know of a rule."""

    least: Callable[[int], int]
    """The fewest updates it takes, given f."""
    bound: str
    """The same, as its error says it."""
    robust: bool = True
    """Whether f bad rows leave the result near the others."""
    moves_along: bool = True
    """Whether the result moves with all updates: not where lengths count, seen from zero."""
    drift: float = 0.5
    """How far f bad rows may carry it: FLTrust weighs them by their direction, and drops none."""


MAJORITY = Case(least=lambda f: 2 * f + 1, bound="n > 2f")
KRUM = Case(least=lambda f: 2 * f + 3, bound="n > 2f + 2")
CASES = {
    "mean": Case(least=lambda f: 0 * f + 1, bound="n >= 1", robust=False),
    "median": MAJORITY,
    "trimmed-mean": MAJORITY,
    "mean-around-median": MAJORITY,
    "krum": KRUM,
    "krum-unsquared": KRUM,
    "multi-krum": KRUM,
    "bulyan": Case(least=lambda f: 4 * f + 3, bound="n >= 4f + 3"),
    "geometric-median": MAJORITY,
    "caf": MAJORITY,
    "centered-clipping": replace(MAJORITY, robust=False, moves_along=False),
    "mda": MAJORITY,
    "smea": Case(least=lambda f: 2 * f + 1, bound="n > 2f and C(n, f) (n - f)³ <= 2,000,000,000"),
    "monna": MAJORITY,
    "dnc": MAJORITY,
    "norm-bound-mean": replace(MAJORITY, robust=False, moves_along=False),
    "signguard": replace(MAJORITY, moves_along=False),
    "fltrust": Case(least=lambda f: 0 * f + 1, bound="n >= 1", drift=2.5),
    "zeno": Case(least=lambda f: f + 1, bound="n > f"),
    "flshield": MAJORITY,
}
ROBUST = [name for name, case in CASES.items() if case.robust]
BAD = {
    "nan": (math.nan,),
    "inf": (math.inf,),
    "-inf": (-math.inf,),
    "huge": (3e38,),
    "-huge": (-3e38,),
    "large": (1e12,),
    "huge of both signs": (3e38, -3e38),
    "both infinities": (math.inf, -math.inf),
    "nan, -inf or huge": (math.nan, -math.inf, 3e38),
}
"""What each liar in turn writes over its honest row, or over one coordinate of it."""

every_rule = pytest.mark.parametrize("name", RULES)
every_rule_of_updates_alone = pytest.mark.parametrize(
    "name", [name for name, rule in RULES.items() if rule.needs_updates_alone]
)
BOUNDED = [name for name in ROBUST if name != "fltrust"]
"""Rules that need more updates to withstand more lies."""


def random_updates(n=15, d=40, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)


def test_the_table_lists_every_rule():
    assert list(CASES) == list(RULES)


def test_a_rule_is_named_like_its_function():
    for name, entry in {**RULES, **PRE_AGGREGATIONS}.items():
        assert entry.function is getattr(rules, name.replace("-", "_"))


@pytest.mark.parametrize("name", [*RULES, *PRE_AGGREGATIONS])
def test_a_docstring_has_a_sentence_formulas_a_source_arguments_and_an_example(name):
    function = {**RULES, **PRE_AGGREGATIONS}[name].function
    parts = inspect.getdoc(function).split("\n\n")
    assert "\n" not in parts[0]
    assert parts[0].endswith(".")
    heads = [part.partition(" ")[0].partition("\n")[0] for part in parts]
    assert [heads.count(head) for head in ("Source:", "Args:", "Example:")] == [1, 1, 1]
    source, arguments, example = (heads.index(h) for h in ("Source:", "Args:", "Example:"))
    assert any(part.startswith("    ") and " = " in part for part in parts[1:source])
    assert source + 1 == arguments
    assert arguments < example
    for parameter in inspect.signature(function).parameters:
        assert f"\n    {parameter}: " in parts[arguments]


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_result_is_a_new_vector_of_the_same_dtype(name, dtype):
    updates = random_updates(dtype=dtype)
    result = called(name)(updates, f=3)
    assert result.shape == (40,)
    assert result.dtype == dtype
    assert result.untyped_storage().data_ptr() != updates.untyped_storage().data_ptr()


@every_rule
def test_the_updates_are_not_modified(name):
    updates = random_updates()
    updates[2, 5], updates[7, 1] = math.nan, math.inf
    before = updates.clone()
    called(name)(updates, f=3)
    assert torch.equal(updates.nan_to_num(nan=-7.0), before.nan_to_num(nan=-7.0))


@every_rule
def test_repetition_gives_the_same_bits(name):
    updates = random_updates(d=3_000)
    assert torch.equal(called(name)(updates, f=3), called(name)(updates.clone(), f=3))


@every_rule
def test_memory_layout_does_not_matter(name):
    updates = random_updates()
    columns_first = updates.T.contiguous().T
    assert torch.allclose(called(name)(columns_first, f=3), called(name)(updates, f=3), atol=1e-6)


@every_rule
def test_gradients_are_not_followed(name):
    result = called(name)(random_updates().requires_grad_(), f=3)
    assert not result.requires_grad


@every_rule
@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_updates_does_not_matter(name, seed):
    updates = random_updates(seed=seed)
    shuffled = updates[torch.randperm(15, generator=torch.Generator().manual_seed(seed))]
    assert torch.allclose(called(name)(shuffled, f=3), called(name)(updates, f=3), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [name for name, case in CASES.items() if case.moves_along and RULES[name].needs_updates_alone],
)
@pytest.mark.parametrize("seed", range(5))
def test_moving_every_update_moves_the_result(name, seed):
    updates, shift = random_updates(seed=seed), random_updates(n=1, seed=99)
    moved = called(name)(updates + shift, f=3)
    assert torch.allclose(moved, called(name)(updates, f=3) + shift[0], atol=1e-5)


@every_rule_of_updates_alone
@pytest.mark.parametrize("f", range(4))
def test_the_result_stays_within_the_range_of_each_coordinate(name, f):
    for seed in range(5):
        updates = random_updates(seed=seed)
        result = called(name)(updates, f=f)
        assert (result >= updates.min(dim=0).values - 1e-6).all()
        assert (result <= updates.max(dim=0).values + 1e-6).all()


@pytest.mark.parametrize("name", [name for name in RULES if name != "fltrust"])
@pytest.mark.parametrize("f", range(4))
def test_equal_updates_are_returned(name, f):
    row = random_updates(n=1)
    assert torch.allclose(called(name)(row.repeat(15, 1), f=f), row[0], rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *("trimmed-mean", "mean-around-median", "multi-krum", "bulyan", "caf"),
        *("centered-clipping", "mda", "smea", "monna", "dnc"),
    ],
)
def test_without_liars_it_is_the_mean(name):
    updates = random_updates()
    assert torch.allclose(called(name)(updates, f=0), mean(updates, f=0), atol=1e-6)


@every_rule
@pytest.mark.parametrize("f", range(4))
def test_the_fewest_updates_are_enough_and_one_less_is_not(name, f):
    case = CASES[name]
    n = case.least(f)
    assert called(name)(random_updates(n=n), f=f).isfinite().all()
    with pytest.raises(InfeasibleError) as caught:
        called(name)(random_updates(n=n - 1), f=f)
    assert str(caught.value) == f"{name} needs {case.bound} updates; got n={n - 1}, f={f}"


@every_rule
def test_no_updates_at_all_are_infeasible(name):
    with pytest.raises(InfeasibleError, match="got n=0, f=0"):
        called(name)(torch.empty(0, 4), f=0)


@every_rule
@pytest.mark.parametrize(
    ("updates", "f", "message"),
    [
        (torch.ones(15, 2), -1, "needs f >= 0; got f=-1"),
        (torch.ones(15), 1, r"needs updates of shape \(n, d\) with d >= 1; got \(15,\)"),
        (torch.ones(15, 2, 2), 1, r"needs updates of shape .* got \(15, 2, 2\)"),
        (torch.ones(15, 0), 1, r"needs updates of shape .* got \(15, 0\)"),
        (torch.ones(15, 2, dtype=torch.int64), 1, "needs float32 or float64 .* got torch.int64"),
    ],
)
def test_what_no_caller_should_send_is_misuse(name, updates, f, message):
    with pytest.raises(MisuseError, match=message):
        called(name)(updates, f=f)


def spoilt(honest, kind, *, first, liars, columns):
    updates = honest.clone()
    for i in range(liars):
        updates[first + i, columns] = BAD[kind][i % len(BAD[kind])]
    return updates


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("columns", [slice(None), 3], ids=["whole row", "one coordinate"])
@pytest.mark.parametrize("first", [0, 6, 12])
def test_f_bad_rows_do_not_carry_the_result_away(name, kind, columns, first):
    honest = 5.0 + 0.1 * random_updates()
    for liars in (1, 3):
        updates = spoilt(honest, kind, first=first, liars=liars, columns=columns)
        result = called(name)(updates, f=3)
        assert (result - honest.mean(dim=0)).abs().max() < CASES[name].drift


@pytest.mark.parametrize("name", ["centered-clipping", "norm-bound-mean"])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("columns", [slice(None), 3], ids=["whole row", "one coordinate"])
def test_f_bad_rows_reach_no_further_than_rows_of_the_allowed_length(name, kind, columns):
    honest = random_updates()
    radius = 10.0 if name == "centered-clipping" else float(honest.norm(dim=1).max())
    updates = spoilt(honest, kind, first=6, liars=3, columns=columns)
    result = RULES[name](updates, f=3)
    away = result - honest[[i for i in range(15) if i not in (6, 7, 8)]].sum(dim=0) / 15
    assert away.norm() <= 3 / 15 * radius + honest.norm(dim=1).max() * 3 / 12


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("columns", [slice(None), 3], ids=["whole row", "one coordinate"])
@pytest.mark.parametrize("f", [1, 2, 3])
def test_the_fewest_updates_withstand_f_bad_ones(name, kind, columns, f):
    honest = 5.0 + 0.1 * random_updates(n=CASES[name].least(f), seed=f)
    result = called(name)(spoilt(honest, kind, first=0, liars=f, columns=columns), f=f)
    # At n = 2f + 1 the geometric median may leave the honest hull, by a bounded way.
    assert (result - 5.0).abs().max() < (5.0 if name == "geometric-median" else 0.5)
