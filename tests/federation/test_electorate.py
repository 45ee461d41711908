"""The attacker's rehearsal of a vote, and the vote: what it foresees is what happens."""

import itertools
from dataclasses import replace

import pytest
from tests.federation.ballots import looks_at_its_losses

from holdout.attacks import BALLOT_ATTACKS, Lie
from holdout.attacks.search import strengths
from holdout.attacks.updates import Alie, InnerProduct
from holdout.federation.vote_rehearsal import DeployedVote
from holdout.holdout_scores import HoldoutScores

GAMMA_MAX = 4.0
# Steps large enough, and liars few enough, that a search often ends below the maximum.
SETTING = {"training": {"learning_rate": 0.5}, "federation": {"byzantine": 0.25}}
LADDER = strengths(GAMMA_MAX)


class Rehearsal:
    """Sends what `inner` sends, after noting what the rehearsal says of the whole ladder."""

    def __init__(self, inner, *, direction=1):
        self.inner, self.direction = inner, direction
        self.verdicts, self.deployed = [], None

    def __call__(self, view) -> Lie:
        self.deployed = view.deployed
        step = self.direction * view.deviation
        self.verdicts = list(view.deployed.selects(view.mean, step, LADDER))
        return self.inner(view)


def selected(record, passing):
    wanted = record.byzantine_proposers if passing == "all" else 1
    return record.byzantine_selected >= wanted


VOTES = [
    {"gate": gate, "quorum": quorum, "bound": bound, "scoring": scoring}
    for gate in ("median", "zero", "none")
    for quorum in ("majority", "paper")
    for bound, scoring in ((True, "exact"), (True, "first-order"), (False, "exact"))
]
CASES = [
    (rule, vote, passing, direction)
    for rule, vote in [("holdout-paper", {}), *(("holdout", vote) for vote in VOTES)]
    for passing, direction in itertools.product(("any", "all"), (1, -1))
]


def name(case):
    rule, vote, passing, direction = case
    return "-".join([rule, *map(str, vote.values()), passing, str(direction)])


def check_rehearsal(case, seed, scene, play, honestly):
    rule, vote, passing, direction = case
    federation, curve = scene(rule, seed=seed, vote=vote, attack={"passing": passing}, **SETTING)
    state = honestly(federation, curve, 2)
    adaptive = Rehearsal(Alie(gamma_max=GAMMA_MAX, direction=direction), direction=direction)
    (record,), _ = play(federation, replace(curve, act=adaptive), 1, state)
    if not record.byzantine_proposers:
        return []
    verdicts = adaptive.verdicts
    passed = len(list(itertools.takewhile(bool, verdicts)))
    assert record.gamma == (LADDER[passed - 1] if passed else 0.0), seed
    assert selected(record, passing) == verdicts[max(0, passed - 1)], seed
    # The next rung, the ends of the ladder, and one in between, as fixed strengths.
    for place in {0, min(passed, len(LADDER) - 1), len(LADDER) // 2, len(LADDER) - 1}:
        fixed = replace(curve, act=Alie(gamma=LADDER[place], direction=direction))
        (real,), _ = play(federation, fixed, 1, state)
        assert selected(real, passing) == verdicts[place], (seed, LADDER[place])
    return verdicts


@pytest.mark.parametrize("case", CASES, ids=map(name, CASES))
def test_the_real_vote_selects_what_the_rehearsal_said(case, scene, play, honestly):
    check_rehearsal(case, CASES.index(case) % 5, scene, play, honestly)


@pytest.mark.parametrize("rule", ["holdout-paper", "holdout"])
@pytest.mark.parametrize("passing", ["any", "all"])
def test_rehearsals_of_many_seeds_say_both_yes_and_no(rule, passing, scene, play, honestly):
    rungs = {True: 0, False: 0}
    for seed in range(6):
        verdicts = check_rehearsal((rule, {}, passing, 1), seed, scene, play, honestly)
        for verdict in verdicts:
            rungs[verdict] += 1
    assert min(rungs.values()) > 20, rungs


@pytest.mark.parametrize("rule", ["holdout-paper", "holdout"])
@pytest.mark.parametrize("seed", range(4))
def test_the_search_of_ipm_foresees_the_vote_too(rule, seed, scene, play, honestly):
    federation, curve = scene(rule, seed=seed, attack={"name": "ipm"}, **SETTING)
    state = honestly(federation, curve, 2)
    (record,), _ = play(federation, curve, 1, state)
    if not record.byzantine_proposers or not record.gamma:
        return
    assert record.byzantine_selected > 0
    if record.gamma < GAMMA_MAX:
        further = LADDER[LADDER.index(record.gamma) + 1]
        fixed = replace(curve, act=InnerProduct(gamma=further))
        (real,), _ = play(federation, fixed, 1, state)
        assert real.byzantine_selected == 0


@pytest.mark.parametrize("ballots", ["honest", "starve", "short", "blank", "random", "inverted"])
@pytest.mark.parametrize("rule", ["holdout-paper", "holdout"])
def test_the_rehearsal_knows_how_its_voters_vote(rule, ballots, scene, play, honestly):
    for seed in range(3):
        federation, curve = scene(rule, seed=seed, attack={"voters": ballots}, **SETTING)
        state = honestly(federation, curve, 2)
        adaptive = Rehearsal(Alie(gamma_max=GAMMA_MAX))
        (record,), _ = play(federation, replace(curve, act=adaptive), 1, state)
        if record.byzantine_proposers:
            passed = len(list(itertools.takewhile(bool, adaptive.verdicts)))
            foreseen = adaptive.verdicts[max(0, passed - 1)]
            assert selected(record, "any") == foreseen, (seed, adaptive.verdicts)


@pytest.mark.parametrize("passing", ["any", "all"])
def test_the_short_cut_for_full_ballots_says_what_the_long_way_says(
    passing, scene, play, honestly, monkeypatch
):
    tried = []
    real = HoldoutScores.combination_losses

    def counted(self, *line):
        tried.append(1)
        return real(self, *line)

    monkeypatch.setattr(HoldoutScores, "combination_losses", counted)
    short_cuts = 0
    for seed in range(8):
        federation, curve = scene(
            "holdout-paper", seed=seed, attack={"passing": passing}, **SETTING
        )
        state = honestly(federation, curve, 2)
        verdicts = []
        for ballot_attack in (BALLOT_ATTACKS["coalition"], looks_at_its_losses):
            tried.clear()
            rehearsal = Rehearsal(Alie(gamma=0.0))
            changed = replace(curve, act=rehearsal, ballot_attack=ballot_attack)
            (record,), _ = play(federation, changed, 1, state)
            verdicts.append(rehearsal.verdicts)
            if ballot_attack is looks_at_its_losses:
                assert tried or not record.byzantine_voters or not record.byzantine_proposers
            else:
                short_cuts += bool(rehearsal.verdicts) and not tried
        assert verdicts[0] == verdicts[1], seed
    # A draw may force full ballots to endorse a copy that everybody ranks last.
    assert short_cuts > 0 or passing == "all"


@pytest.mark.parametrize("rule", ["holdout-paper", "holdout"])
@pytest.mark.parametrize("passing", ["any", "all"])
def test_asking_some_voters_says_what_asking_all_says(rule, passing, scene, play, honestly):
    for seed in range(6):
        federation, curve = scene(rule, seed=seed, attack={"passing": passing}, **SETTING)
        state = honestly(federation, curve, 2)
        verdicts = []
        for ballot_attack in (BALLOT_ATTACKS["coalition"], looks_at_its_losses):
            rehearsal = Rehearsal(Alie(gamma=0.0))
            changed = replace(curve, act=rehearsal, ballot_attack=ballot_attack)
            play(federation, changed, 1, state)
            verdicts.append(rehearsal.verdicts)
        assert verdicts[0] == verdicts[1], seed


def test_not_every_voter_is_asked(scene, play, honestly, monkeypatch):
    asked = []
    real = HoldoutScores.combination_losses

    def counted(self, directions, coefficients, voters=None):
        asked.append((self.voter_count, len(voters)))
        return real(self, directions, coefficients, voters)

    monkeypatch.setattr(HoldoutScores, "combination_losses", counted)
    for seed in range(4):
        federation, curve = scene("holdout", seed=seed, **SETTING)
        play(federation, replace(curve, act=Rehearsal(Alie(gamma=0.0))), 1)
    assert any(some < everybody for everybody, some in asked)


def test_a_full_coalition_has_nobody_to_beat(scene, play):
    # Both proposers lie: there is no honest update at all, and the search still ends.
    for rule in ("holdout-paper", "holdout"):
        federation, curve = scene(
            rule, federation={"proposers": 2, "voters": 5, "byzantine": 12}, attack={"gamma": 0.5}
        )
        curve = replace(curve, act=Alie(gamma_max=GAMMA_MAX))
        records, _ = play(federation, curve, 12)
        alone = [record for record in records if record.byzantine_proposers == 2]
        assert alone
        assert all(record.gamma is not None for record in alone)


@pytest.mark.parametrize("rule", ["holdout-paper", "holdout"])
def test_voters_of_the_users_own_kind_do_not_stop_the_search(rule, scene, play):
    class Wrapped:
        def __init__(self, worker):
            self.propose, self.vote = worker.propose, worker.vote

    plain, curve = scene(rule)
    wrapped, own_curve = scene(rule, own={"worker": Wrapped})
    before, _ = play(plain, replace(curve, act=Alie(gamma=1.0)), 2)
    after, _ = play(wrapped, replace(own_curve, act=Alie(gamma=1.0)), 2)
    for one, other in zip(before, after, strict=True):
        assert one.ballots == other.ballots
        assert one.selection == other.selection
    searched, _ = play(wrapped, own_curve, 2)
    assert all(record.outcome == "step" for record in searched)
    assert all(record.gamma is not None for record in searched)


def test_the_vote_leaves_somebody_out(scene, play):
    federation, curve = scene()
    rehearsal = Rehearsal(Alie(gamma=0.0))
    play(federation, replace(curve, act=rehearsal))
    assert isinstance(rehearsal.deployed, DeployedVote)
    assert not rehearsal.deployed.leaves_nobody_out
