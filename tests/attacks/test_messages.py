"""Every way to vote as a liar where ballots are joint, through the same laws."""

import pytest
import torch

from holdout.attacks import BALLOT_ATTACKS, MESSAGE_ATTACKS, CoalitionView, MessageView
from holdout.seeds import stream

D = 50
every_message_attack = pytest.mark.parametrize("name", MESSAGE_ATTACKS)


def vectors(count, seed):
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed))


def view(*, lies=2, known=5, voter=3, seed=0):
    """Lies three times as long as what honest voters send, and an own vector."""
    heard = vectors(known, 1)
    usual = float(heard.norm(dim=1).median()) if known else 0.0
    shared = CoalitionView(list(3 * vectors(lies, 2)), heard, usual)
    source = stream(seed, "ballot", 1, voter)
    return MessageView(voter, shared, own=lambda: vectors(1, voter)[0], source=source)


def test_ballots_of_both_kinds_have_the_same_names():
    assert list(MESSAGE_ATTACKS) == list(BALLOT_ATTACKS)


@every_message_attack
@pytest.mark.parametrize("lies", [0, 1, 2])
@pytest.mark.parametrize("known", [0, 1, 5])
def test_it_sends_a_finite_vector_or_nothing(name, lies, known):
    sent = MESSAGE_ATTACKS[name](view(lies=lies, known=known))
    silent = (
        name == "blank"
        or (name in {"coalition", "short"} and not lies)
        or (name == "starve" and not known)
    )
    assert (sent is None) == silent
    if sent is not None:
        assert sent.shape == (D,)
        assert sent.dtype == torch.float32
        assert sent.isfinite().all()


@every_message_attack
def test_the_same_voter_sends_the_same_and_only_noise_depends_on_the_seed(name):
    first, again, other = (MESSAGE_ATTACKS[name](view(seed=seed)) for seed in (0, 0, 1))
    if first is not None:
        assert torch.equal(first, again)
        assert torch.equal(first, other) == (name != "random")


def test_each_sends_what_its_name_says():
    given = view()
    own, usual = given.own(), given.shared.usual_norm
    sent = {name: attack(given) for name, attack in MESSAGE_ATTACKS.items()}
    assert torch.equal(sent["honest"], own)
    assert torch.equal(sent["inverted"], -own)
    assert torch.equal(sent["short"], given.shared.lies[0])
    lie, mean = torch.stack(list(given.shared.lies)).mean(dim=0), given.shared.known.mean(dim=0)
    assert torch.allclose(sent["coalition"], usual * lie / lie.norm(), atol=1e-5)
    assert torch.allclose(sent["starve"], -usual * mean / mean.norm(), atol=1e-5)
    assert float(sent["random"].norm()) == pytest.approx(usual, rel=1e-5)
