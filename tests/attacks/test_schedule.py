"""When liars lie, against a plain walk over the rounds."""

from hypothesis import given
from hypothesis import strategies as st

from holdout.attacks.schedule import Schedule

few = st.integers(0, 6)


def walk(onset, ramp, every, dormant, rounds):
    """The shares, counted round by round."""
    lied, shares = 0, []
    for number in range(1, rounds + 1):
        due = number >= onset and (number - onset) % every == 0
        if not due or (dormant and lied == dormant):
            shares.append(0.0)
            continue
        lied += 1
        steps = min(number - onset + 1, ramp + 1)
        shares.append(steps / (ramp + 1))
    return shares


@given(onset=st.integers(1, 6), ramp=few, every=st.integers(1, 6), dormant=few)
def test_the_share_of_a_round_needs_no_history(onset, ramp, every, dormant):
    schedule = Schedule(onset, ramp, every, dormant)
    shares = [schedule.share(number) for number in range(1, 31)]
    assert shares == walk(onset, ramp, every, dormant, 30)


def test_without_a_schedule_the_whole_lie_is_told_in_every_round():
    assert {Schedule().share(number) for number in range(1, 50)} == {1.0}
