"""What is measured of each round."""

from tests.node.test_service import MODEL, VOTE, play

from holdout.agreement import events as ev
from holdout.node.network.blobs import Blobs
from holdout.node.runtime.watch import ROUNDS_KEPT, Watch

SECOND = 1_000_000


def commit(number, **values):
    return ev.Commit(number, MODEL, MODEL, **{"stepped": True, "selected": (1, 2), **values})


def sample(watch, name, **labels):
    return watch.registry.get_sample_value(name, labels)


def watched():
    return Watch(Blobs(lambda *_: None))


def test_a_round_and_its_phases_are_measured():
    watch = watched()
    propose, judge = ev.Propose(1, MODEL), ev.Judge(1, MODEL, (), 0.0, 0.1, 1)
    start = ev.Start(b"")
    watch.saw(start, [ev.Entered(1, 0), ev.Compute(propose)], 0)
    watch.saw(ev.Proposed(propose, MODEL), [], 2 * SECOND)
    watch.saw(start, [ev.Compute(judge)], 3 * SECOND)
    watch.saw(ev.Judged(judge, ()), [ev.Entered(1, 1)], 4 * SECOND)
    watch.saw(start, [ev.Broadcast(VOTE, ev.Urgency.VOTE)], 7 * SECOND)
    watch.saw(start, [commit(1), ev.Entered(2, 0)], 15 * SECOND)
    (seen,) = watch.rounds
    assert (seen.round, seen.seconds, seen.periods, seen.selected) == (1, 15.0, 1, (1, 2))
    assert sample(watch, "holdout_round_seconds_sum") == 15.0
    assert sample(watch, "holdout_step_seconds_sum", step="gradient") == 2.0
    assert sample(watch, "holdout_step_seconds_sum", step="ballot") == 1.0
    phases = {"proposals": 3.0, "ballots": 4.0, "agreement": 8.0}
    for phase, seconds in phases.items():
        assert sample(watch, "holdout_phase_seconds_sum", phase=phase) == seconds


def test_a_round_that_was_learned_from_others_has_no_duration():
    watch = watched()
    watch.saw(ev.Start(b""), [ev.Entered(5, 0), commit(3, selected=None), commit(4)], 0)
    assert [seen.seconds for seen in watch.rounds] == [None, None]
    assert sample(watch, "holdout_round_seconds_count") == 0
    watch.measured(4, 0.75)
    watch.measured(1, 0.5)
    assert [seen.accuracy for seen in watch.rounds] == [None, 0.75]


def test_a_failed_job_is_not_measured_and_rounds_are_forgotten():
    watch = watched()
    job = ev.Propose(1, MODEL)
    watch.saw(ev.Start(b""), [ev.Entered(1, 0), ev.Compute(job)], 0)
    watch.saw(ev.JobFailed(job), [], SECOND)
    watch.saw(ev.Proposed(job, MODEL), [], SECOND)
    assert sample(watch, "holdout_step_seconds_count", step="gradient") is None
    for number in range(2 * ROUNDS_KEPT):
        watch.saw(ev.Start(b""), [commit(number)], 0)
    assert [seen.round for seen in watch.rounds] == list(range(ROUNDS_KEPT, 2 * ROUNDS_KEPT))


def test_alarms_are_kept_with_their_round():
    watch = watched()
    watch.saw(ev.Start(b""), [ev.Entered(7, 0), ev.Alarm("odd"), ev.Halt("too many")], 0)
    assert list(watch.alarms) == [(7, "odd"), (7, "halted: too many")]


def test_the_driver_shows_it_every_event_and_the_accuracy():
    def script(event):
        return [ev.Entered(1, 0), commit(1)] if isinstance(event, ev.Start) else None

    rig = play(
        script,
        lambda rig: rig.until(lambda: any(r.accuracy == 0.5 for r in rig.service.watch.rounds)),
    )
    assert rig.service.watch.rounds[0].round == 1
