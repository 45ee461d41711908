"""What given sizes do not guarantee, in words and with probabilities.

A run may be configured below the sizes of `sizing`, as the paper's runs are. It then says so at its
start, and `holdout plan` says the same in advance.
"""

import bisect
from collections.abc import Iterable
from fractions import Fraction

from holdout.agreement import sizing
from holdout.agreement.params import ATTEMPTS_MAX, Mode, RoleDraw
from holdout.agreement.sizing import CommitteeSize, NetworkSizes, Risk
from holdout.agreement.tails import Law, binomial, hypergeometric
from holdout.voting.odds import any_of, majority_failure


def shortfalls(chosen: NetworkSizes, *, n: int, f: Fraction | int, risk: Risk) -> tuple[str, ...]:
    """What fails more often with these sizes than the risk allows; empty if nothing does."""
    liars = sizing.check_population(n, f)
    return (
        *_committee_shortfalls(chosen.mode, chosen.committee, n, liars, risk),
        *_majority_shortfalls(chosen, n, liars, risk),
        *_ballot_shortfalls(chosen, n, liars, sizing.as_share(f, n), risk),
    )


def caveats(chosen: NetworkSizes, *, n: int, f: Fraction | int, risk: Risk) -> tuple[str, ...]:
    """What no size can guarantee: the assumptions, and what is left to chance."""
    liars = sizing.check_population(n, f)
    spare = n - liars - chosen.committee.quorum
    said = [
        f"Nothing holds if more than B = {liars} of the {n} workers lie, collude, or stay away.",
        "Progress, unlike safety, needs a network that in the end delivers within some bound.",
    ]
    if chosen.mode is Mode.ALL:
        said.append(
            f"B = {liars} workers may be silent and {spare} more may be down before rounds stop."
            if spare
            else f"With B = {liars} silent workers every other one is needed: one more that is down"
            " stops the rounds. Assume fewer liars to have slack."
        )
    else:
        said.append(
            "Agreement itself is a matter of luck with a drawn committee: two blocks for one round,"
            f" somewhere in {risk.rounds} rounds, with probability up to {risk.safety:g}."
        )
    if chosen.mode is Mode.SHUFFLE:
        said.append(
            "The committee is public: whoever can silence chosen workers can stop a period."
        )
    if chosen.mode is Mode.SELF:
        said.append(
            f"The bound behind mode self allows for {ATTEMPTS_MAX} recovery attempts in a period;"
            " it was derived in this project and has not been checked by others."
        )
    said.append(
        "Some round lacks an honest majority of proposers or voters, or its first quorum, with"
        f" probability up to {risk.progress:g}."
    )
    if liars and chosen.voters.byzantine_max < liars:
        said.append(
            "Some accepted update has no honest supporter, or a leader's choice of ballots decides,"
            f" with probability up to {risk.safety:g}."
        )
    leaderless = sizing.no_honest_leader(n, liars, chosen.leaders)
    if leaderless:
        said.append(
            f"A period has no honest leader with probability {leaderless:.2g}; it costs a period."
        )
    return tuple(said)


def committee_odds(
    n: int, byzantine: int, mode: Mode, chosen: CommitteeSize
) -> tuple[float, float]:
    """The probabilities that one committee could certify two blocks, and that it can certify none.

    In mode `self` the first is an upper bound.
    """
    size, quorum = chosen.size, chosen.quorum
    if size >= n:
        # Everybody is drawn, however the draw is made: all steps have the same committee.
        mode = Mode.ALL
    match mode:
        case Mode.ALL:
            return float(2 * quorum <= n + byzantine), float(n - byzantine < quorum)
        case Mode.SHUFFLE:
            liars = hypergeometric(n, byzantine, size)
            return liars.at_least(2 * quorum - size), liars.at_least(size - quorum + 1)
        case Mode.SELF:
            return (
                min(
                    1.0,
                    sizing.two_quorums(n, byzantine, size, quorum)
                    + _steps_bound(n, byzantine, chosen),
                ),
                binomial(n - byzantine, size, n).at_most(quorum - 1),
            )


def _steps_bound(n: int, byzantine: int, chosen: CommitteeSize) -> float:
    """A bound on contradicting committees: at most twice the smallest that a split point gives."""
    honest = n - byzantine

    def terms(split: int) -> tuple[float, float]:
        return sizing.certified(n, byzantine, chosen, split), sizing.voted_down(n, chosen, split)

    def crossed(split: int) -> bool:
        growing, falling = terms(split)
        return growing >= falling

    place = bisect.bisect_left(range(honest + 1), x=True, key=crossed)
    return min(sum(terms(split)) for split in (max(0, place - 1), min(honest, place)))


def _committee_shortfalls(
    mode: Mode, chosen: CommitteeSize, n: int, liars: int, risk: Risk
) -> list[str]:
    unsafe, stuck = committee_odds(n, liars, mode, chosen)
    name = f"a committee of {chosen.size} with quorum {chosen.quorum}"
    said = []
    if unsafe > risk.unsafe and not (
        # In mode `self` the probability is a bound, and sizes are planned with a closer one.
        mode is Mode.SELF and sizing.self_selection_is_safe(n, liars, chosen, risk)
    ):
        said.append(f"{name} could certify two blocks{_somewhere(unsafe, risk, risk.safety)}")
    if stuck > risk.stuck:
        said.append(f"{name} cannot certify any block{_somewhere(stuck, risk, risk.progress)}")
    return said


def _majority_shortfalls(chosen: NetworkSizes, n: int, liars: int, risk: Risk) -> list[str]:
    said = []
    for role, size in (("proposers", chosen.proposers), ("voters", chosen.voters.size)):
        drawn = min(n, size)
        chance = (
            majority_failure(workers=n, byzantine=liars, drawn=drawn)
            if chosen.role_draw is RoleDraw.FIXED
            else sizing.no_majority(n, liars, drawn)
        )
        if chance > risk.stuck / 2:
            where = _somewhere(chance, risk, risk.progress / 2)
            said.append(f"{size} {role} lack an honest majority{where}")
    return said


def _ballot_shortfalls(
    chosen: NetworkSizes, n: int, liars: int, f: Fraction, risk: Risk
) -> list[str]:
    voters = chosen.voters
    honest, byzantine = _voters(chosen, n, liars)
    said = []
    few = honest.at_most(voters.ballots_min - 1)
    if few > risk.stuck:
        said.append(
            f"fewer than M_min = {voters.ballots_min} honest voters are drawn, so that the round"
            f" may make no step{_somewhere(few, risk, risk.progress)}"
        )
    many = byzantine.at_least(voters.byzantine_max + 1)
    if many > risk.unsafe:
        said.append(
            f"more than b_max = {voters.byzantine_max} Byzantine voters are drawn, so that an"
            " update may be accepted without one honest supporter"
            + _somewhere(many, risk, risk.safety)
        )
    if not sizing.ballots_suffice(f, voters.ballots_min, voters.byzantine_max):
        said.append(
            f"M_min = {voters.ballots_min} honest ballots do not carry an update over the floor of"
            f" b_max + 1 = {voters.byzantine_max + 1}: liars may keep rounds from making a step"
        )
    return said


def _voters(chosen: NetworkSizes, n: int, liars: int) -> tuple[Law, Law]:
    size = min(n, chosen.voters.size)
    if chosen.role_draw is RoleDraw.FIXED:
        return hypergeometric(n, n - liars, size), hypergeometric(n, liars, size)
    return binomial(n - liars, size, n), binomial(liars, size, n)


def _somewhere(chance: float, risk: Risk, accepted: float) -> str:
    run = any_of(risk.rounds, min(1.0, chance * risk.seed_bias))
    return f" with probability {run:.2g} in {risk.rounds} rounds (accepted: {accepted:g})"


def notes_on_sizes(
    chosen: NetworkSizes,
    asked: Iterable[tuple[str, int, int]],
    *,
    n: int,
    f: Fraction | int,
    risk: Risk,
) -> list[str]:
    """What to tell a user before a run with these sizes; nothing if none is below the tables.

    Args:
        chosen: The sizes of the run.
        asked: (name, chosen size, size that the tables ask for) of those that users choose.
        n: Workers.
        f: Byzantine ones among them, a share or a number.
        risk: What is accepted.
    """
    small = [
        f"{name} = {size} (the tables ask for {planned})"
        for name, size, planned in asked
        if size < planned
    ]
    if not small:
        return []
    missing = shortfalls(chosen, n=n, f=f, risk=risk)
    return [
        f"sizes below the tables: {', '.join(small)}",
        *(f"not guaranteed: {shortfall}" for shortfall in missing),
    ]
