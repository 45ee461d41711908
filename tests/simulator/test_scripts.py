"""The schedules of `scripts`, and what must come of them."""

import pytest
from tests.simulator import scripts
from tests.simulator.scripted import A, B, C
from tests.simulator.scripts import CERT, DOWN, LATE, REDO

S3_SEEDS = (2, 4, 6)
"""There c's own block is not the best one."""


@pytest.mark.parametrize("seed", range(3))
def test_s1_a_restarted_worker_sticks_to_the_value_by_which_it_entered_the_period(seed):
    stage, value = scripts.s1(seed)
    assert [stage.sent.get((w, 1, REDO)) for w in (A, B)] == [value, value], stage.story()
    assert not stage.voted(A, DOWN, 1)
    assert not stage.voted(B, DOWN, 1)
    stage.allow()
    stage.until(lambda: stage.decided(A, B, C))
    assert len({stage.cluster.nodes[w].commits[1].value for w in (A, B, C)}) == 1
    assert stage.violations() == []


@pytest.mark.parametrize("seed", range(3))
def test_s2_after_a_recovery_vote_a_worker_answers_late_and_never_cert(seed):
    stage, value, rules = scripts.s2(seed)
    assert stage.sent[A, 0, LATE] == stage.sent[C, 0, LATE] == value
    assert not stage.voted(A, CERT)
    assert not stage.voted(C, CERT)
    stage.allow(*rules)
    stage.until(lambda: stage.decided(A, B, C))
    assert stage.violations() == []


@pytest.mark.parametrize("seed", S3_SEEDS)
def test_s3_what_one_worker_knew_at_entry_all_know_at_the_filter(seed):
    stage, _ = scripts.s3(seed)
    stage.until(lambda: stage.decided(A, B, C))
    assert max(stage.checker.periods.values()) == 1, stage.story()
    assert stage.violations() == []
