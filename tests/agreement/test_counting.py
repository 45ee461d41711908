import functools
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import golden
from tests.agreement.rig import some_params

from holdout.agreement.counting import tally
from holdout.agreement.params import TallyRule
from holdout.ids import ProposalId, WorkerId
from holdout.seeds import stream
from holdout.voting import Approvals
from holdout.voting import tally as central_tally

TESTDATA = Path(__file__).parent / "testdata"


def rules(f=Fraction(1, 3), floor=0, rule=TallyRule.COMPLETION):
    return some_params(f=f, byzantine_voters_max=floor, tally=rule)


def passing(ballots, updates, params):
    return [c.proposer for c in tally(ballots, updates=updates, params=params) if c.passes]


def plain(ballots, updates, params):
    """The rule as it is written, with one Fraction for each ballot and update."""
    size, keep = len(updates), 1 - params.f
    full = math.ceil(keep * size)
    found = []
    for update in updates:
        approvals = sum(update in ballot for ballot in ballots)
        score = Fraction(approvals)
        for ballot in ballots:
            if params.tally is TallyRule.COMPLETION and update not in ballot:
                score += Fraction(max(0, full - len(ballot)), size - len(ballot))
        passes = score >= keep * len(ballots) and approvals >= params.byzantine_voters_max + 1
        found.append((update, approvals, score, passes))
    return found


@st.composite
def elections(draw):
    updates = draw(st.lists(st.integers(0, 30), unique=True, max_size=9).map(sorted))
    ballot = st.lists(st.sampled_from(updates), unique=True) if updates else st.just([])
    return draw(st.lists(ballot, max_size=12)), updates


fractions = st.tuples(st.integers(0, 9), st.integers(1, 30)).map(
    lambda pair: Fraction(pair[0], sum(pair))
)


@given(elections(), fractions, st.integers(0, 3), st.sampled_from(TallyRule))
def test_the_tally_is_the_rule_as_it_is_written(election, f, floor, rule):
    ballots, updates = election
    params = rules(f, floor, rule)
    found = tally(ballots, updates=updates, params=params)
    assert [(c.proposer, c.approvals, c.score, c.passes) for c in found] == plain(
        ballots, updates, params
    )


@given(elections(), fractions, st.randoms(use_true_random=False))
def test_the_order_of_ballots_and_of_names_changes_nothing(election, f, random):
    ballots, updates = election
    mixed = [random.sample(ballot, len(ballot)) for ballot in ballots]
    random.shuffle(mixed)
    params = rules(f)
    assert tally(mixed, updates=updates, params=params) == tally(
        ballots, updates=updates, params=params
    )


@given(st.integers(1, 9), st.integers(1, 12), fractions, st.data())
def test_with_full_ballots_on_one_set_it_is_the_papers_rule(size, voters, f, data):
    params = rules(f)
    full = params.approve_count(size)
    some = st.permutations(range(size)).map(lambda order: order[:full])
    ballots = data.draw(st.lists(some, min_size=voters, max_size=voters))
    quorum = params.approve_count(voters)
    central = central_tally(
        {
            WorkerId(v): Approvals(tuple(sorted(map(ProposalId, ballot))))
            for v, ballot in enumerate(ballots)
        },
        quorum=quorum,
    )
    assert passing(ballots, range(size), params) == list(central)


@given(elections(), fractions)
def test_without_the_floor_some_update_always_passes(election, f):
    ballots, _ = election
    named = sorted({proposer for ballot in ballots for proposer in ballot})
    if not named:
        return
    counts = tally(ballots, updates=named, params=rules(f))
    best = max(counts, key=lambda count: count.score)
    assert best.score >= (1 - f) * len(ballots)
    # Whatever passes the threshold and is named passes: the floor of one is then met.
    assert any(count.passes for count in counts)


@given(elections(), fractions, st.integers(1, 4))
def test_nothing_passes_by_the_liars_ballots_alone(election, f, liars):
    ballots, updates = election
    params = rules(f, floor=liars)
    honest = ballots[liars:]
    for proposer in passing(ballots, updates, params):
        assert any(proposer in ballot for ballot in honest)


def test_a_hundred_ballots_on_a_hundred_updates_give_exact_sums():
    # Ballots of all lengths: the common denominator has dozens of digits.
    words = stream(0, "large tally")
    ballots = [words.sample(range(100), 1 + k % 100) for k in range(100)]
    counts = tally(ballots, updates=range(100), params=rules())
    lacking = sum(max(0, 67 - len(ballot)) for ballot in ballots)
    assert sum(c.score for c in counts) == sum(map(len, ballots)) + lacking


# ------------------------------------------------------------- liars with short or full ballots


HONEST, LIARS = range(20), range(20, 30)
HONEST_VOTERS, LYING_VOTERS = 40, 20


def ranked(words, seen):
    """The seen updates by noisy quality: honest ones better by one, noise of the same size."""
    scores = {}
    for update in seen:
        # Twelve uniform numbers minus six: nearly normal, and integers all the way.
        noise = sum(words.below(1 << 20) for _ in range(12)) - 6 * (1 << 20)
        scores[update] = noise - (update in LIARS) * (1 << 20)
    return sorted(seen, key=lambda update: -scores[update])


@functools.cache
def trial(number, attack):
    words = stream(number, "toy experiment")
    ballots = []
    for voter in range(HONEST_VOTERS):
        blind = attack == "withheld" and voter % 2
        seen = list(HONEST) if blind else [*HONEST, *LIARS]
        ballots.append(ranked(words, seen)[: -(-2 * len(seen) // 3)])
    for voter in range(LYING_VOTERS):
        match attack:
            case "full":
                ballots.append([*LIARS, *words.sample(HONEST, 10)])
            case "one entry":
                ballots.append([LIARS[voter % 10]])
            case _:
                ballots.append(list(LIARS))
    return ballots


def outcome(attack, rule, trials=60):
    """The mean size of the union-consensus, liars in it, and how often it was empty."""
    found = [
        passing(trial(number, attack), [*HONEST, *LIARS], rules(rule=rule))
        for number in range(trials)
    ]
    sizes, liars = sum(map(len, found)), sum(u in LIARS for uc in found for u in uc)
    return sizes / trials, liars / trials, sum(not uc for uc in found) / trials


def test_against_full_ballots_completion_changes_nothing():
    literal, completed = outcome("full", TallyRule.PAPER), outcome("full", TallyRule.COMPLETION)
    assert literal == completed
    assert 13 < completed[0] < 20
    assert completed[1] < 6


def test_ballots_of_one_name_starve_the_literal_rule_only():
    size, _, empty = outcome("one entry", TallyRule.PAPER)
    assert size < 3
    assert empty > 0.25
    size, liars, empty = outcome("one entry", TallyRule.COMPLETION)
    assert size > 15
    assert liars < 3
    assert empty == 0


def test_ballots_for_liars_only_leave_the_literal_rule_with_the_liars():
    size, liars, _ = outcome("liars only", TallyRule.PAPER)
    assert liars > size / 2
    size, liars, empty = outcome("liars only", TallyRule.COMPLETION)
    assert size > 14
    assert liars < size / 3
    assert empty == 0


def test_withheld_updates_stop_the_literal_rule_only():
    _, _, empty = outcome("withheld", TallyRule.PAPER)
    assert empty > 0.5
    size, liars, empty = outcome("withheld", TallyRule.COMPLETION)
    assert size > 12
    assert liars < 2
    assert empty == 0


# ---------------------------------------------------------------------------------------- scripts


def run(case: golden.Case) -> str:
    options = case.options
    assert case.command == "tally"
    ballots = [list(map(int, names)) for _, *names in (line.split() for line in case.lines)]
    updates = sorted({name for ballot in ballots for name in ballot})
    params = rules(
        Fraction(options["f"]),
        int(options.get("floor", 0)),
        TallyRule(options.get("rule", "completion")),
    )
    counts = tally(ballots, updates=updates, params=params)
    full, keep = params.approve_count(len(updates)), (1 - params.f) * len(ballots)
    lines = [f"{len(ballots)} ballots, full with {full} of {len(updates)} names, threshold {keep}"]
    lines += [
        f"{c.proposer}: {c.approvals} approvals, score {c.score}{', passes' if c.passes else ''}"
        for c in counts
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("script", sorted(TESTDATA.glob("tally*.txt")), ids=lambda path: path.stem)
def test_scripts_print_what_they_did(script, request):
    golden.check(script, run, rewrite=request.config.getoption("--rewrite"))
