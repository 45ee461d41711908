"""The attacker's rehearsal of a vote, and the vote: what it foresees is what happens.

Every draw here has Byzantine proposers, and is required to: without any there is no rehearsal.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from tests.federation.ballots import looks_at_its_losses

from holdout.attacks import BALLOT_ATTACKS, Lie
from holdout.attacks.search import strengths
from holdout.attacks.updates import Alie, InnerProduct
from holdout.federation.joint_rehearsal import DeployedJointVote
from holdout.federation.vote_rehearsal import DeployedVote
from holdout.holdout_scores import HoldoutScores
from holdout.voting import JointBallot

VOTE_RULES = ["holdout-paper", "holdout-1", "holdout"]
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
JOINT = [{"screen": screen, "memory": memory} for screen in (True, False) for memory in (0.8, 0.0)]
CASES = [
    (rule, vote, passing, direction)
    for rule, vote in [
        ("holdout-paper", {}),
        *(("holdout-1", vote) for vote in VOTES),
        *(("holdout", vote) for vote in JOINT),
    ]
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
    assert record.byzantine_proposers, seed
    verdicts = adaptive.verdicts
    assert len(verdicts) == len(LADDER)
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


@pytest.mark.parametrize("rule", VOTE_RULES)
@pytest.mark.parametrize("passing", ["any", "all"])
def test_rehearsals_of_many_seeds_say_both_yes_and_no(rule, passing, scene, play, honestly):
    rungs = {True: 0, False: 0}
    for seed in range(6):
        verdicts = check_rehearsal((rule, {}, passing, 1), seed, scene, play, honestly)
        for verdict in verdicts:
            rungs[verdict] += 1
    # With joint ballots only N_p - k are out, whatever they sent: a copy more always has a weight.
    assert min(rungs.values()) > (5 if rule == "holdout" else 20), rungs


@pytest.mark.parametrize("rule", VOTE_RULES)
def test_the_search_of_ipm_foresees_the_vote_too(rule, scene, play, honestly):
    ends = {"selected": 0, "next one kept out": 0}
    for seed in range(7):
        federation, curve = scene(rule, seed=seed, attack={"name": "ipm"}, **SETTING)
        state = honestly(federation, curve, 2)
        (record,), _ = play(federation, curve, 1, state)
        assert record.byzantine_proposers, seed
        # Strength 0 is sent, too, where nothing passes.
        assert record.byzantine_selected > 0 or record.gamma == 0, seed
        ends["selected"] += record.byzantine_selected > 0
        if record.gamma < GAMMA_MAX:
            further = LADDER[LADDER.index(record.gamma) + 1]
            fixed = replace(curve, act=InnerProduct(gamma=further))
            (real,), _ = play(federation, fixed, 1, state)
            assert real.byzantine_selected == 0, seed
            ends["next one kept out"] += 1
    assert min(ends.values()) > 1, ends


@pytest.mark.parametrize("ballots", ["honest", "starve", "short", "blank", "random", "inverted"])
@pytest.mark.parametrize("rule", VOTE_RULES)
def test_the_rehearsal_knows_how_its_voters_vote(rule, ballots, scene, play, honestly):
    stopped = 0
    for seed in range(3):
        federation, curve = scene(rule, seed=seed, attack={"voters": ballots}, **SETTING)
        state = honestly(federation, curve, 2)
        adaptive = Rehearsal(Alie(gamma_max=GAMMA_MAX))
        (record,), _ = play(federation, replace(curve, act=adaptive), 1, state)
        assert record.byzantine_proposers, seed
        assert record.byzantine_voters, seed
        passed = len(list(itertools.takewhile(bool, adaptive.verdicts)))
        foreseen = adaptive.verdicts[max(0, passed - 1)]
        assert selected(record, "any") == foreseen, (seed, adaptive.verdicts)
        stopped += passed < len(LADDER)
    assert stopped > 0


@pytest.fixture
def asked(monkeypatch):
    """For each time that losses of a lie were asked for: (how many voters there are, and asked)."""
    noted = []
    real = HoldoutScores.combination_losses

    def counted(self, directions, coefficients, voters=None):
        noted.append((self.voter_count, self.voter_count if voters is None else len(voters)))
        return real(self, directions, coefficients, voters)

    monkeypatch.setattr(HoldoutScores, "combination_losses", counted)
    return noted


@pytest.fixture
def both_ways(scene, play, honestly, asked):
    """The verdicts of a rehearsal, and whom it asked, by the quick way and by asking everybody."""

    def rehearse(rule, seed, passing):
        federation, curve = scene(rule, seed=seed, attack={"passing": passing}, **SETTING)
        state = honestly(federation, curve, 2)
        found = []
        for ballot_attack in (BALLOT_ATTACKS["coalition"], looks_at_its_losses):
            asked.clear()
            rehearsal = Rehearsal(Alie(gamma=0.0))
            changed = replace(curve, act=rehearsal, ballot_attack=ballot_attack)
            (record,), _ = play(federation, changed, 1, state)
            assert record.byzantine_proposers, seed
            assert record.byzantine_voters, seed
            assert len(rehearsal.verdicts) == len(LADDER)
            found.append((rehearsal.verdicts, tuple(asked)))
        (quick, some), (slow, everybody) = found
        assert all(heard < there for there, heard in some)
        assert everybody
        assert all(heard == there for there, heard in everybody)
        return quick, slow, some

    return rehearse


@pytest.mark.parametrize("passing", ["any", "all"])
def test_the_short_cut_for_full_ballots_says_what_the_long_way_says(passing, both_ways):
    short_cuts = 0
    for seed in range(8):
        quick, slow, some = both_ways("holdout-paper", seed, passing)
        assert quick == slow, seed
        short_cuts += not some
    # A draw may force full ballots to endorse a copy that everybody ranks last, but not all copies.
    assert bool(short_cuts) == (passing == "any")


@pytest.mark.parametrize("rule", ["holdout-paper", "holdout-1"])
@pytest.mark.parametrize("passing", ["any", "all"])
def test_asking_some_voters_says_what_asking_all_says(rule, passing, both_ways):
    polls = 0
    for seed in range(6):
        quick, slow, some = both_ways(rule, seed, passing)
        assert quick == slow, seed
        polls += bool(some)
    assert polls > 0


def test_not_every_voter_is_asked(scene, play, asked):
    for seed in range(4):
        federation, curve = scene("holdout-1", seed=seed, **SETTING)
        play(federation, replace(curve, act=Rehearsal(Alie(gamma=0.0))), 1)
    assert any(some < everybody for everybody, some in asked)


def test_a_full_coalition_has_nobody_to_beat(scene, play):
    # Both proposers lie: there is no honest update at all, and the search still ends.
    for rule in VOTE_RULES:
        federation, curve = scene(
            rule, federation={"proposers": 2, "voters": 5, "byzantine": 12}, attack={"gamma": 0.5}
        )
        curve = replace(curve, act=Alie(gamma_max=GAMMA_MAX))
        records, _ = play(federation, curve, 12)
        alone = [record for record in records if record.byzantine_proposers == 2]
        assert alone
        assert all(record.gamma is not None for record in alone)


@pytest.mark.parametrize("rule", VOTE_RULES)
def test_voters_of_the_users_own_kind_do_not_stop_the_search(rule, scene, play):
    class Wrapped:
        def __init__(self, worker):
            self.propose, self.vote = worker.propose, worker.vote

    plain, curve = scene(rule)
    wrapped, own_curve = scene(rule, plugins={"worker": Wrapped})
    before, _ = play(plain, replace(curve, act=Alie(gamma=1.0)), 2)
    after, _ = play(wrapped, replace(own_curve, act=Alie(gamma=1.0)), 2)
    for one, other in zip(before, after, strict=True):
        assert one.ballots == other.ballots
        assert one.selection == other.selection
    searched, _ = play(wrapped, own_curve, 2)
    assert len(before) == len(searched) == 2
    assert all(record.outcome == "step" for record in searched)
    assert all(record.gamma is not None for record in searched)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [("holdout-paper", DeployedVote), ("holdout-1", DeployedVote), ("holdout", DeployedJointVote)],
)
def test_the_vote_leaves_somebody_out(rule, kind, scene, play):
    federation, curve = scene(rule)
    rehearsal = Rehearsal(Alie(gamma=0.0))
    play(federation, replace(curve, act=rehearsal))
    # Custom code, such as this rehearsal, can ask it but not see it.
    assert isinstance(rehearsal.deployed._LentDeployed__asked, kind)
    assert not rehearsal.deployed.leaves_nobody_out


@pytest.mark.parametrize(
    "sent",
    [
        torch.full((1704,), torch.nan),
        torch.zeros(1704, dtype=torch.int64),
        torch.zeros(3),
        torch.ones(1704, dtype=torch.float64),
        "x",
    ],
    ids=["nan", "integers", "short", "float64", "no vector"],
)
@pytest.mark.parametrize("attack", ["alie", "jointly"])
def test_an_honest_voter_that_sends_junk_stops_no_search_of_a_joint_vote(sent, attack, scene, play):
    class Confused:
        def __init__(self, worker):
            self.inner, self.propose = worker, worker.propose

        def vote(self, *task, **settings):
            if self.inner.worker_id % 3:
                return self.inner.vote(*task, **settings)
            return JointBallot(sent)

    class Spy:
        def __init__(self, inner):
            self.inner, self.views = inner, []

        def __call__(self, view):
            self.views.append(view)
            return self.inner(view)

    federation, curve = scene("holdout", plugins={"worker": Confused}, attack={"name": attack})
    spy = Spy(curve.act)
    records, state = play(federation, replace(curve, act=spy), 2)
    assert all(record.outcome == "step" for record in records)
    assert state.weights.isfinite().all()
    seen = [view.messages() for view in spy.views]
    assert seen
    assert all(messages.isfinite().all() for messages in seen)
    assert all(messages.dtype == torch.float32 for messages in seen)
