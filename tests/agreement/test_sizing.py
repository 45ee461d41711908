"""Committee sizes: the design's tables, exact tails, and draws by chance."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from holdout.agreement import sizing
from holdout.agreement.codec import digest
from holdout.agreement.guarantees import caveats, committee_odds, shortfalls
from holdout.agreement.keys import SimulatedKeys
from holdout.agreement.messages import WORKERS_MAX
from holdout.agreement.params import Mode, RoleDraw
from holdout.agreement.sizing import CommitteeSize, Risk, Voters, sizes
from holdout.agreement.sortition import Role, alpha, drawn, shuffled
from holdout.agreement.tails import binomial, hypergeometric
from holdout.errors import InfeasibleError, UserError
from holdout.voting.odds import hypergeometric_tail

# The tables are for an unbiased seed.
STRICT = Risk(rounds=1000, safety=1e-6, progress=1e-3, seed_bias=1)
RELAXED = Risk(rounds=1000, safety=1e-3, progress=0.1, seed_bias=1)

# n, f in tenths | B | all: Q | shuffle strict | relaxed | self per period | per step | relaxed
COMMITTEES = """
10    1 | 1    | 7    | 4 3       | 4 3       | all       | all       | all
10    2 | 2    | 7    | 7 5       | 7 5       | all       | all       | all
10    3 | 3    | 7    | all       | all       | all       | all       | all
30    1 | 3    | 21   | 10 7      | 10 7      | 28        | 29        | 28
30    2 | 6    | 21   | 19 13     | 19 13     | all       | all       | all
30    3 | 9    | 21   | 28 19     | 28 19     | all       | all       | all
100   1 | 10   | 67   | 31 21     | 26 18     | 83 56     | 83 56     | 79 56
100   2 | 20   | 67   | 61 41     | 57 39     | 93 61     | 93 61     | 90 61
100   3 | 30   | 67   | 91 61     | 91 61     | all       | all       | all
1000  1 | 100  | 667  | 59 41     | 40 28     | 339 239   | 408 298   | 307 226
1000  2 | 200  | 667  | 209 142   | 141 96    | 619 429   | 671 473   | 569 403
1000  3 | 300  | 667  | 820 549   | 748 501   | 962 646   | 967 651   | 951 643
10000 1 | 1000 | 6667 | 65 45     | 40 28     | 490 347   | 656 482   | 431 318
10000 2 | 2000 | 6667 | 265 180   | 166 113   | 1398 974  | 1740 1233 | 1185 842
10000 3 | 3000 | 6667 | 3376 2260 | 2404 1610 | 7237 4887 | 7645 5181 | 6755 4582
"""

# n, then for f = .1, .2, .3: self / fixed
MAJORITIES = """
10    | 9 3   | 10 5  | 10 7
30    | 17 7  | 22 13 | 27 19
100   | 25 17 | 39 33 | 61 55
1000  | 31 23 | 59 51 | 128 119
10000 | 32 23 | 62 53 | 144 135
"""

# n, then for f = .1, .2, .3: self, fixed; each tau_V M_min b_max
VOTERS = """
10    | 9 2 1    | 3 2 1    | 10 8 2     | 5 3 2    | 10 7 3      | 8 5 3
30    | 18 4 3   | 7 4 3    | 24 9 6     | 14 8 6   | 29 14 9     | 22 13 9
100   | 35 12 10 | 20 12 10 | 59 26 20   | 41 24 19 | 85 43 30    | 73 43 30
1000  | 68 29 26 | 29 17 15 | 167 86 68  | 88 52 41 | 505 291 203 | 341 206 144
10000 | 76 33 29 | 31 18 16 | 198 103 82 | 96 57 45 | 951 552 386 | 502 303 212
"""


def rows(table):
    return [[cell.split() for cell in line.split("|")] for line in table.strip().splitlines()]


def cell(made, n, shown):
    """As the table shows it; "28 of 30" there leaves the quorum out."""
    if made.size == n:
        return ["all"]
    return [str(made.size), str(made.quorum)][: len(shown)]


# --- The tables ---


@pytest.mark.parametrize("row", rows(COMMITTEES), ids=lambda row: "-".join(row[0]))
def test_the_table_of_consensus_committees_is_recomputed(row):
    (n, tenths), (liars,), (quorum,), *shown = row
    n, liars = int(n), int(liars)
    assert liars == sizing.check_population(n, Fraction(int(tenths), 10))
    assert sizing.committee(n, liars, STRICT, Mode.ALL) == CommitteeSize(n, int(quorum))
    made = [
        sizing.shuffled_committee(n, liars, STRICT),
        sizing.shuffled_committee(n, liars, RELAXED),
        sizing.self_selected_committee(n, liars, STRICT, each_step=False),
        sizing.self_selected_committee(n, liars, STRICT),
        sizing.self_selected_committee(n, liars, RELAXED),
    ]
    assert [cell(*pair) for pair in zip(made, [n] * 5, shown, strict=True)] == shown


@pytest.mark.parametrize("row", rows(MAJORITIES), ids=lambda row: row[0][0])
def test_the_table_of_honest_majorities_is_recomputed(row):
    (n,), *shown = row
    made = [
        [
            str(sizing.majority_size(int(n), int(n) * tenths // 10, STRICT, draw))
            for draw in (RoleDraw.SELF, RoleDraw.FIXED)
        ]
        for tenths in (1, 2, 3)
    ]
    assert made == shown


@pytest.mark.parametrize("row", rows(VOTERS), ids=lambda row: row[0][0])
def test_the_table_of_voters_is_recomputed(row):
    (n,), *shown = row
    made = []
    for tenths in (1, 2, 3):
        for draw in (RoleDraw.SELF, RoleDraw.FIXED):
            f = Fraction(tenths, 10)
            found = sizing.voters(int(n), int(n) * tenths // 10, f, STRICT, draw)
            assert found == sizing.majority_voters(int(n), int(n) * tenths // 10, f, STRICT, draw)
            made.append([str(found.size), str(found.ballots_min), str(found.byzantine_max)])
    assert made == shown


def test_leaders_are_twenty_and_rarely_all_byzantine():
    assert sizing.no_honest_leader(100, 30, 20) == pytest.approx(1.6e-7, rel=0.03)
    assert sizing.no_honest_leader(10000, 3000, 20) == pytest.approx(8e-7, rel=0.03)
    assert sizing.no_honest_leader(20, 6, 20) == 0.0
    assert [sizes(n=n, f=Fraction(3, 10)).leaders for n in (4, 20, 100)] == [4, 20, 20]


# --- Searching ---


def is_good(n, liars, tau, each_step):
    quorum = binomial(n - liars, tau, n).lower_quantile(STRICT.stuck)
    left = STRICT.unsafe - sizing.two_quorums(n, liars, tau, quorum)
    if left < 0 or not each_step:
        return left >= 0
    return any(
        binomial(x + liars, tau, n).at_least(quorum) + 8 * binomial(n - x, tau, n).at_least(quorum)
        <= left
        for x in range(n - liars + 1)
    )


@pytest.mark.parametrize(("n", "liars"), [(60, 6), (100, 10), (100, 20), (120, 0)])
@pytest.mark.parametrize("each_step", [True, False])
def test_a_self_selected_size_is_good_and_the_one_below_is_not(n, liars, each_step):
    made = sizing.self_selected_committee(n, liars, STRICT, each_step=each_step)
    assert made.size < n
    assert is_good(n, liars, made.size, each_step)
    assert not is_good(n, liars, made.size - 1, each_step)


def test_bisection_is_a_few_members_above_the_smallest_where_sizes_alternate():
    # docs/decisions/0006: 616 and 617 are good, 618 is not, all from 619 on are.
    good = [tau for tau in range(1, 700) if is_good(1000, 200, tau, each_step=False)]
    assert good[:3] == [616, 617, 619]
    assert sizing.self_selected_committee(1000, 200, STRICT, each_step=False).size == 619


@pytest.mark.parametrize(("n", "liars"), [(10, 1), (30, 6), (57, 11), (60, 17), (90, 3), (90, 0)])
@pytest.mark.parametrize("risk", [STRICT, RELAXED])
def test_a_public_committee_is_the_smallest(n, liars, risk):
    def pair(size):
        law = stats.hypergeom(n, liars, size)
        most = next(b for b in range(size + 1) if law.sf(b) <= risk.unsafe)
        usual = next(b for b in range(size + 1) if law.sf(b) <= risk.stuck)
        quorum = (size + most) // 2 + 1
        return (size, quorum) if size - usual >= quorum else None

    expected = next((found for found in map(pair, range(1, n)) if found), None)
    made = sizing.shuffled_committee(n, liars, risk)
    assert made == CommitteeSize(*expected or (n, 2 * n // 3 + 1))


@settings(max_examples=25)
@given(st.integers(4, 80), st.data())
def test_publicly_drawn_voters_are_the_fewest(n, data):
    liars = data.draw(st.integers(0, (n - 1) // 3))
    f = Fraction(liars, n)

    def found(size):
        return sizing.judge_voters(n, liars, size, STRICT, RoleDraw.FIXED)

    expected = next(
        found(size)
        for size in range(1, n + 1)
        if sizing.ballots_suffice(f, found(size).ballots_min, found(size).byzantine_max)
    )
    assert sizing.voters(n, liars, f, STRICT, RoleDraw.FIXED) == expected


@settings(max_examples=60)
@given(st.integers(1, 400), st.data())
def test_there_are_always_sizes_and_they_keep_what_they_promise(n, data):
    liars = data.draw(st.integers(0, (n - 1) // 3))
    draw = data.draw(st.sampled_from(RoleDraw))
    mode = data.draw(st.sampled_from(Mode)) if n >= 50 else Mode.ALL
    made = sizes(n=n, f=liars, risk=STRICT, mode=mode, role_draw=draw)
    quorum, size = made.committee.quorum, made.committee.size
    assert 1 <= quorum <= size <= min(n, 2 * quorum - 1)
    assert 1 <= made.proposers <= made.voters.size <= n
    assert sizing.ballots_suffice(
        Fraction(liars, n), made.voters.ballots_min, made.voters.byzantine_max
    )
    unsafe, stuck = committee_odds(n, liars, mode, made.committee)
    assert unsafe <= 2 * STRICT.unsafe
    assert stuck <= STRICT.stuck


# --- Quorums of everybody ---


def test_quorums_of_everybody_meet_in_an_honest_worker_and_need_no_liar():
    for n in range(1, 201):
        quorum = sizing.quorum_of_all(n)
        for liars in range((n - 1) // 3 + 1):
            assert 2 * quorum > n + liars
            assert n - liars >= quorum
            assert committee_odds(n, liars, Mode.ALL, CommitteeSize(n, quorum)) == (0.0, 0.0)
        too_many = (n - 1) // 3 + 1
        assert 2 * quorum <= n + too_many or n - too_many < quorum
        with pytest.raises(InfeasibleError, match="3B \\+ 1"):
            sizing.check_population(n, too_many)


def test_one_vote_less_is_too_few_at_the_limit():
    for n in range(4, 201, 3):
        unsafe, _ = committee_odds(n, (n - 1) // 3, Mode.ALL, CommitteeSize(n, 2 * n // 3))
        assert unsafe == 1.0


# --- Tails ---


@settings(max_examples=60)
@given(st.integers(0, 3000), st.integers(1, 3000), st.data())
def test_binomial_tails_agree_with_scipy(trials, population, data):
    tau = data.draw(st.integers(0, population))
    count = data.draw(st.integers(-1, trials + 1))
    law, known = binomial(trials, tau, population), stats.binom(trials, tau / population)
    assert law.at_most(count) == pytest.approx(known.cdf(count), rel=1e-8, abs=1e-30)
    assert law.at_least(count) == pytest.approx(known.sf(count - 1), rel=1e-8, abs=1e-30)
    assert math.fsum(law.mass) == pytest.approx(1.0)


@settings(max_examples=60)
@given(st.integers(1, 2000), st.data())
def test_hypergeometric_tails_agree_with_scipy(population, data):
    marked = data.draw(st.integers(0, population))
    size = data.draw(st.integers(0, population))
    count = data.draw(st.integers(-1, size + 1))
    law, known = hypergeometric(population, marked, size), stats.hypergeom(population, marked, size)
    assert law.at_most(count) == pytest.approx(known.cdf(count), rel=1e-6, abs=1e-14)
    assert law.at_least(count) == pytest.approx(known.sf(count - 1), rel=1e-6, abs=1e-14)


@settings(max_examples=60)
@given(st.integers(1, WORKERS_MAX), st.data())
def test_a_law_laid_out_whole_has_the_tails_that_are_summed_one_at_a_time(population, data):
    marked = data.draw(st.integers(0, population))
    size = data.draw(st.integers(0, population))
    count = data.draw(st.integers(-1, size + 1))
    tail = hypergeometric_tail(workers=population, byzantine=marked, drawn=size, at_least=count)
    law = hypergeometric(population, marked, size)
    assert law.at_least(count) == pytest.approx(tail, rel=1e-11, abs=1e-38)


@given(st.integers(0, 40), st.integers(0, 40), st.floats(1e-9, 0.5))
def test_quantiles_are_what_they_say(trials, tau, chance):
    law = binomial(trials, tau, 40)
    low, high = law.lower_quantile(chance), law.upper_quantile(chance)
    assert law.at_most(low - 1) <= chance
    assert low == trials or law.at_most(low) > chance
    assert law.at_least(high + 1) <= chance
    assert high == 0 or law.at_least(high) > chance


def test_small_binomials_are_exact():
    law = binomial(7, 3, 10)
    for k in range(8):
        exact = math.comb(7, k) * Fraction(3, 10) ** k * Fraction(7, 10) ** (7 - k)
        assert law.mass[k] == pytest.approx(float(exact), rel=1e-14)


# --- By chance ---


def test_probabilities_are_the_frequencies_of_random_draws():
    n, liars, tau, quorum, runs = 30, 6, 20, 14, 400_000
    dice = np.random.default_rng(7)
    honest = dice.binomial(n - liars, tau / n, runs)
    byzantine = dice.binomial(liars, tau / n, runs)

    def near(count, probability):
        return abs(count - runs * probability) < 5 * math.sqrt(runs * probability)

    assert near(
        (honest + 2 * byzantine >= 2 * quorum).sum(), sizing.two_quorums(n, liars, tau, quorum)
    )
    assert near((honest <= byzantine + 6).sum(), shifted_majority(n, liars, tau, 6))
    assert near((honest <= byzantine).sum(), sizing.no_majority(n, liars, tau))
    in_public = dice.hypergeometric(liars, n - liars, 12, runs)
    unsafe, stuck = committee_odds(n, liars, Mode.SHUFFLE, CommitteeSize(12, 8))
    assert near((12 - in_public + 2 * in_public >= 16).sum(), unsafe)
    assert near((12 - in_public < 8).sum(), stuck)


def shifted_majority(n, liars, tau, by):
    honest, byzantine = binomial(n - liars, tau, n), binomial(liars, tau, n)
    return sum(
        chance * honest.at_most(b + by)
        for b, chance in enumerate(byzantine.mass, start=byzantine.first)
    )


def test_the_lottery_itself_draws_with_these_probabilities():
    n, liars, tau, rounds = 12, 3, 6, 4000
    keys = SimulatedKeys(3, n)
    chain = seed = digest("here")
    lost = fixed_lost = 0
    for r in range(rounds):
        asked = alpha(chain, seed, r, Role.PROPOSER)
        who = [i for i in range(n) if drawn(keys.signer(i).prove(asked)[1], i, tau, n)]
        lost += 2 * sum(i < liars for i in who) >= len(who)
        public = shuffled(chain, seed, r, Role.PROPOSER, n, tau)
        fixed_lost += 2 * sum(i < liars for i in public) >= tau
    for count, chance in (
        (lost, sizing.no_majority(n, liars, tau)),
        (fixed_lost, hypergeometric(n, liars, tau).at_least(3)),
    ):
        assert abs(count - rounds * chance) < 4 * math.sqrt(rounds * chance)


# --- All sizes of a run ---


def test_a_run_allows_for_a_biased_seed():
    biased, unbiased = (
        sizes(n=1000, f=Fraction(1, 5), risk=risk, mode=Mode.SHUFFLE) for risk in (Risk(), STRICT)
    )
    assert Risk().unsafe == STRICT.unsafe / 4
    assert Risk().stuck == STRICT.stuck / 4
    assert unbiased.committee == CommitteeSize(209, 142)
    assert biased.committee.size > 209
    assert biased.voters.size > unbiased.voters.size == 167


def test_without_liars_the_first_draw_that_is_not_empty_does():
    made = sizes(n=100, f=0, risk=STRICT)
    assert made.voters == Voters(made.proposers, 1, 0)
    assert (1 - made.proposers / 100) ** 100 <= 5e-7


@pytest.mark.parametrize(
    ("n", "mode"), [(1, Mode.ALL), (1000, Mode.ALL), (1001, Mode.SHUFFLE), (5000, Mode.SHUFFLE)]
)
def test_the_usual_mode_depends_on_the_number_of_workers(n, mode):
    assert sizes(n=n, f=0).mode is mode


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 3, "f": 1}, r"n >= 3B \+ 1 workers, of which B may lie; got n=3, B=1"),
        ({"n": 100, "f": Fraction(34, 100)}, "got n=100, B=34"),
        ({"n": 1, "f": Fraction(3, 5)}, "f below 1/2; got f = 0.6"),
        ({"n": 0, "f": 0}, "1 to 10000 workers; got n=0"),
        ({"n": 10_001, "f": 0}, "1 to 10000 workers; got n=10001"),
        ({"n": 49, "f": 0, "mode": Mode.SHUFFLE}, "mode shuffle needs at least 50 workers"),
        ({"n": 49, "f": 0, "mode": Mode.SELF}, "mode self needs at least 50 workers; got n=49"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(InfeasibleError, match=message):
        sizes(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "1 to 1000000000000000 rounds; got 0"),
        ({"rounds": 10**400}, "rounds; got 10000"),
        ({"safety": 0.0}, r"delta \(safety\) must lie between 0 and 1; got 0"),
        ({"safety": math.nan}, "got nan"),
        ({"progress": 1.0}, r"delta \(progress\) must lie between 0 and 1; got 1"),
        ({"safety": 1e-24}, "must allow at least 1e-25 for each draw; got 1e-24 over 1000 rounds"),
    ],
)
def test_a_risk_must_be_one(options, message):
    with pytest.raises(UserError, match=message):
        Risk(**options)


# --- In words ---


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("draw", RoleDraw)
def test_planned_sizes_fall_short_of_nothing(mode, draw):
    f = Fraction(1, 5)
    made = sizes(n=1000, f=f, risk=STRICT, mode=mode, role_draw=draw)
    assert shortfalls(made, n=1000, f=f, risk=STRICT) == ()


def test_everybody_falls_short_of_nothing_however_drawn():
    for mode in Mode:
        made = sizes(n=100, f=33, risk=STRICT, mode=mode)
        assert made.committee == CommitteeSize(100, 67)
        assert shortfalls(made, n=100, f=33, risk=STRICT) == ()


def small(**changes):
    made = {
        "mode": Mode.SHUFFLE,
        "role_draw": RoleDraw.FIXED,
        "committee": CommitteeSize(200, 142),
        "proposers": 51,
        "voters": Voters(88, 52, 41),
        "leaders": 20,
    }
    return sizing.NetworkSizes(**made | changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"committee": CommitteeSize(209, 100)},
            "quorum 100 could certify two blocks with probability 1 ",
        ),
        ({"committee": CommitteeSize(209, 180)}, "quorum 180 cannot certify any block"),
        ({"proposers": 12}, "12 proposers lack an honest majority"),
        ({"voters": Voters(10, 1, 0)}, "10 voters lack an honest majority"),
        ({"voters": Voters(88, 70, 41)}, "fewer than M_min = 70 honest voters"),
        ({"voters": Voters(88, 52, 20)}, "more than b_max = 20 Byzantine voters"),
        ({"voters": Voters(88, 40, 41)}, r"over the floor of b_max \+ 1 = 42"),
        (
            {"mode": Mode.SELF, "committee": CommitteeSize(200, 142)},
            "could certify two blocks|cannot certify",
        ),
        (
            {"role_draw": RoleDraw.SELF, "voters": Voters(88, 52, 41)},
            "fewer than M_min = 52 honest voters",
        ),
    ],
)
def test_smaller_sizes_say_what_they_give_up(change, message):
    said = "\n".join(shortfalls(small(**change), n=1000, f=200, risk=STRICT))
    assert re.search(message, said)


def test_limits_name_the_slack_and_the_leaders():
    tight = "\n".join(caveats(sizes(n=100, f=33), n=100, f=33, risk=Risk()))
    assert "one more that is down stops the rounds" in tight
    loose = "\n".join(caveats(sizes(n=100, f=20), n=100, f=20, risk=Risk()))
    assert "B = 20 workers may be silent and 13 more may be down" in loose
    assert "no honest leader" in loose
    drawn_by_lot = sizes(n=1000, f=200, mode=Mode.SELF)
    assert "matter of luck" in "\n".join(caveats(drawn_by_lot, n=1000, f=200, risk=Risk()))
