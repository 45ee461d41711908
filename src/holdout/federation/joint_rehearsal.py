"""The joint vote as an attacker rehearses it: what would come of these lies and these messages.

The vote decides by inner products alone (`holdout.joint_vote`). Those between honest vectors are
computed once a round, those with a lie when it is tried, and many lies are judged at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from holdout.attacks import MixedLie
from holdout.attacks.view import Mixtures, dense
from holdout.cosines import Vectors, combine, cosines
from holdout.federation.joint_ballots import JointVoters
from holdout.ids import ProposalId
from holdout.joint_vote import JointMemory, JointVerdict, Products, judge
from holdout.learning.vector import ProposalFault, read_update
from holdout.parallel import run_all
from holdout.rules.distance import Matrix
from holdout.voting import Terms

BATCH = 16  # Lies judged together.


@dataclass(frozen=True, eq=False)
class DeployedJointVote:
    """HoldOut with joint ballots as the attacker runs it on what it knows."""

    voters: JointVoters
    """What it takes for the voters."""
    honest: Mapping[ProposalId, Tensor]
    """The honest updates that it knows or guesses, by proposal id."""
    copies: tuple[ProposalId, ...]
    """The ids under which its lies are sent."""
    passing: str
    """`any` copy with a weight is enough, or `all` must have one."""
    terms: Terms
    memory: JointMemory
    _messages_read: dict[int, Tensor] = field(default_factory=dict, init=False)
    """The valid messages of the last trial, by identity: honest ones come again in the next."""

    @property
    def leaves_nobody_out(self) -> bool:
        """Never: that is what the vote is for."""
        return False

    def selects(
        self, base: Tensor, direction: Tensor, strengths: Sequence[float]
    ) -> Iterator[bool]:
        """For each strength: whether the lie would be part of the step."""
        count, total = len(self.copies), len(self.copies) + len(self.honest)
        # No more than N_p - k are ever out, so one of more copies always has a weight.
        is_certain = self.passing == "any" and count > total - self.terms.approve_count(total)
        for start in range(0, len(strengths), BATCH):
            tried = strengths[start : start + BATCH]
            # Each on one thread: waking two takes longer than a sum.
            lies = run_all(lambda strength: base + strength * direction, tried)
            told = [_valid([lie] * count, len(base), {}) for lie in lies]
            if is_certain:
                yield from map(bool, told)
                continue
            judged = iter(self._judged([(one, self._usual(one)) for one in told if one]))
            for one in told:
                yield bool(one) and self._is_selected(next(judged))

    def _is_selected(self, verdict: JointVerdict) -> bool:
        chosen = verdict.weights[len(self.honest) :] > 0
        return bool(chosen.all() if self.passing == "all" else chosen.any())

    def outcome(
        self, lies: Sequence[Tensor | None], messages: Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        """The step that would be made of these lies; None: none."""
        told, sent = self._read(lies, messages)
        updates = [*self.honest.values(), *told]
        if not updates:
            return None
        (verdict,) = self._judged([(told, sent)])
        kept = [] if self.memory.direction is None else [self.memory.direction]
        everything = Vectors.of([*updates, *self.voters.known, *sent, *kept])
        return combine(everything.rows, verdict.step)

    def reaches(self, basis: Tensor, trials: Sequence[MixedLie], along: Tensor) -> list[float]:
        """How far the step of each trial goes along a direction, by inner products alone."""
        fixed, _ = self._fixed
        # What voters send as usual need not be a mixture of the basis.
        usual = {
            number: self._read(dense(trial.lies, basis), None)[1]
            for number, trial in enumerate(trials)
            if trial.messages is None
        }
        extra = {id(vector): vector for sent in usual.values() for vector in sent}
        table, lengths = self._with([*basis, *extra.values(), along])
        grams = table * np.outer(lengths, lengths)
        first, last = len(fixed.rows), len(fixed.rows) + len(basis)
        places = {key: last + number for number, key in enumerate(extra)}
        reached = np.zeros(len(trials))
        groups: dict[int, list[int]] = {}
        for number, trial in enumerate(trials):
            sent = usual[number] if trial.messages is None else trial.messages
            groups.setdefault(len(sent), []).append(number)
        for count, numbers in groups.items():
            lies = np.zeros((len(numbers), len(self.copies), len(lengths)))
            messages = np.zeros((len(numbers), count, len(lengths)))
            for place, number in enumerate(numbers):
                trial = trials[number]
                lies[place, :, first:last] = trial.lies
                if trial.messages is not None:
                    messages[place, :, first:last] = trial.messages
                else:
                    where = [places[id(vector)] for vector in usual[number]]
                    messages[place, np.arange(count), where] = 1.0
            reached[numbers] = self._reached(grams, lies, messages)
        found: list[float] = reached.tolist()
        return found

    def _reached(self, grams: Matrix, lies: Mixtures, messages: Mixtures) -> Matrix:
        """<step, along> of many votes; the direction is the last row of the inner products."""
        size = grams.shape[-1]
        kept = len(self._fixed[0].rows)
        fixed = np.broadcast_to(np.eye(kept, size), (len(lies), kept, size))
        n, m = len(self.honest), len(self.voters.known)
        parts = [fixed[:, :n], lies, fixed[:, n : n + m], messages, fixed[:, n + m :]]
        rows = np.concatenate(parts, axis=1)
        products = rows @ grams @ rows.swapaxes(1, 2)
        lengths = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
        scale = lengths[:, :, None] * lengths[:, None, :]
        table = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
        verdict = judge(
            Products(lengths, table, proposals=n + lies.shape[1], messages=m + messages.shape[1]),
            terms=self.terms,
            memory=self.memory,
        )
        reached: Matrix = (verdict.step[:, None] @ rows)[:, 0] @ grams[:, -1]
        return reached

    @cached_property
    def _fixed(self) -> tuple[Vectors, Matrix]:
        """What no lie changes: honest updates, honest messages, the remembered direction."""
        kept = [] if self.memory.direction is None else [self.memory.direction]
        vectors = Vectors.of([*self.honest.values(), *self.voters.known, *kept])
        return vectors, cosines(vectors)

    def _with(self, rows: Sequence[Tensor]) -> tuple[Matrix, Matrix]:
        """Cosines and lengths of what is fixed and of more vectors."""
        fixed, known = self._fixed
        new = Vectors.of(rows)
        across = cosines(new, fixed)
        table = np.block([[known, across.T], [across, cosines(new)]])
        return table, np.concatenate([fixed.lengths, new.lengths])

    def _judged(self, read: Sequence[tuple[list[Tensor], list[Tensor]]]) -> list[JointVerdict]:
        """What the vote would make of each pair of valid lies and messages."""
        first = len(self._fixed[0].rows)
        # Copies of a lie are one vector, and so are messages that several voters send.
        fresh = {id(v): v for lies, messages in read for v in (*lies, *messages)}
        places = {key: first + number for number, key in enumerate(fresh)}
        table, lengths = self._with(list(fresh.values()))
        n, m = len(self.honest), len(self.voters.known)

        def chosen(lies: Sequence[Tensor], messages: Sequence[Tensor]) -> list[int]:
            """The rows of the table that make up a vote, in the order of `Products`."""
            told = [places[id(lie)] for lie in lies]
            sent = [places[id(message)] for message in messages]
            return [*range(n), *told, *range(n, n + m), *sent, *range(n + m, first)]

        # Votes of one shape, and mostly all are, are judged together.
        shapes: dict[tuple[int, int], list[int]] = {}
        for number, (lies, messages) in enumerate(read):
            shapes.setdefault((len(lies), len(messages)), []).append(number)
        verdicts: dict[int, JointVerdict] = {}
        for (told, sent), numbers in shapes.items():
            rows = np.array([chosen(*read[number]) for number in numbers])
            products = Products(
                lengths[rows],
                table[rows[:, :, None], rows[:, None, :]],
                proposals=n + told,
                messages=m + sent,
            )
            together = judge(products, terms=self.terms, memory=self.memory)
            verdicts |= {number: together.one(place) for place, number in enumerate(numbers)}
        return [verdicts[number] for number in range(len(read))]

    def _read(
        self, lies: Sequence[Tensor | None], messages: Sequence[Tensor | None] | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The valid lies and messages, as the server would admit them."""
        told = _valid(lies, self._dimension, {})
        if messages is None:
            return told, self._usual(told)
        return told, _valid(messages, self._dimension, {})

    def _usual(self, told: Sequence[Tensor]) -> list[Tensor]:
        """The valid ones of the messages that lying voters send as usual, given what is told."""
        return _valid(self.voters.lies(told), self._dimension, self._messages_read)

    @property
    def _dimension(self) -> int:
        return len(self.voters.setup.state.weights)


def _valid(sent: Sequence[object], dimension: int, before: dict[int, Tensor]) -> list[Tensor]:
    """What a server would admit; `before` holds what it admitted last time, and then this time."""
    # By identity, so that what is sent several times is read once.
    distinct = {id(vector): vector for vector in sent}
    read = {
        key: read_update(vector, dimension) if key not in before else before[key].detach().float()
        for key, vector in distinct.items()
    }
    valid = {key: vector for key, vector in read.items() if not isinstance(vector, ProposalFault)}
    before.clear()
    before.update((key, v) for key, v in distinct.items() if key in valid and isinstance(v, Tensor))
    return [valid[id(v)] for v in sent if id(v) in valid]
