"""The names of things: who works, what was proposed, which round it is."""

from typing import NewType

WorkerId = NewType("WorkerId", int)
"""A worker of the federation, 0 to n - 1."""

ProposalId = NewType("ProposalId", int)
"""A proposal of one round: its place in the order in which the proposers were drawn, from 0."""

RoundNumber = NewType("RoundNumber", int)
"""The paper's epoch t, counted from 1."""

Digest = NewType("Digest", bytes)
"""Thirty-two bytes of SHA-256 that name a block, a model, an update or a payload."""
