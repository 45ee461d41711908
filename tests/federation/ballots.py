"""A way to vote that makes the attacker's rehearsal take the long way."""

from holdout.attacks import BALLOT_ATTACKS


def looks_at_its_losses(view):
    """Votes like the coalition, but makes the rehearsal believe that losses decide."""
    view.ranking()
    return BALLOT_ATTACKS["coalition"](view)
