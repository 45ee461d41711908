"""Rules of a server that holds a few clean rows of its own: FLTrust and Zeno.

Both ask `context.root` (`data.root_samples`): what the server would itself propose, and how well
its rows do after each update. Updates that are not finite count for nothing.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from holdout import device
from holdout.errors import InfeasibleError, MisuseError
from holdout.parallel import keep_blas_to_one_thread
from holdout.rules.context import Root, RuleContext
from holdout.rules.coordinatewise import mean
from holdout.rules.distance import distances_of
from holdout.rules.rule import Needs, admit

Rows = npt.NDArray[np.float64]

RHO = 0.0005
"""The weight of an update's squared length in Zeno's score."""

TINY = 1e-30
AGREED = 1e-3
"""Where the cosines with the root update sum to less, their sum is not estimated."""
DOUBTFUL = 1e-5
"""Zeno's scores that differ by less than this share of losses and lengths may be equal."""

FLTRUST_NEEDS = Needs("n >= 1", lambda f: 1 + 0 * f, root=True)
ZENO_NEEDS = Needs("n > f", lambda f: f + 1, root=True)


def fltrust(updates: Tensor, *, f: int, context: RuleContext | None = None) -> Tensor:
    """The mean of the updates at the root update's length, weighted by how far they agree with it.

    With g_0 the update that the server's own rows suggest, and g_i the update of worker i,

        t_i = max(0, <g_i, g_0> / (|g_i| |g_0|))
        g   = sum_i t_i (|g_0| / |g_i|) g_i / sum_i t_i.

    Where no update agrees with g_0 at all, the result is zero. A row that is zero or not finite has
    t_i = 0.

    Source: Cao, Fang, Liu, Gong, 2021, FLTrust, arXiv 2012.13995. There the server draws batches of
    its rows; here each step takes a part of them in turn, all in one step if a worker makes one.

    Args:
        updates: The updates, (n, d).
        f: How many of them may be lies; the rule is the same whatever it is.
        context: Holds the server's own rows, `context.root`.

    Example:
        >>> class Own:
        ...     def update(self):
        ...         return torch.tensor([2.0, 0.0])
        ...
        ...     def losses(self, updates):
        ...         return -updates[:, 0].double()
        >>> from holdout import stream
        >>> from holdout.rules import RuleContext
        >>> context = RuleContext(1, torch.zeros(2), 0.1, stream(0), root=Own())
        >>> fltrust(torch.tensor([[9.0, 0.0], [0.3, 0.4], [-5.0, 0.0]]), f=1, context=context)
        tensor([1.7000, 0.6000])
    """
    updates = admit("fltrust", updates, f=f, needs=FLTRUST_NEEDS)
    own = device.to_numpy(_root("fltrust", context).update().detach()).astype(np.float64)
    length = lengths_of(own[None])[0]
    rows = finite_rows(updates)
    norms = lengths_of(rows)
    ways = rows / np.where(norms > 0, norms, 1.0)[:, None]
    with keep_blas_to_one_thread():
        trust = np.maximum(ways @ (own / length if length > 0 else own), 0.0)
        total = trust.sum()
        if not total > 0:
            return torch.zeros_like(updates[0])
        return device.from_numpy(length * ((trust / total) @ ways)).to(updates)


def zeno(
    updates: Tensor, *, f: int, context: RuleContext | None = None, rho: float = RHO
) -> Tensor:
    """The mean of the n - f updates that lower the loss of the server's own rows most.

    With F the mean loss of these rows, w the weights and eta the learning rate, the stochastic
    descendant score of an update u is

        s(u) = F(w) - F(w - eta u) - rho |u|^2,

    and the n - f updates with the highest scores are averaged (the paper's b is f); the lowest
    index wins a tie. An update after which the loss is not finite is never among them, even if
    fewer than n - f are left.

    Source: Xie, Koyejo, Gupta, 2019, Zeno, arXiv 1805.10032. There F is the mean loss of a few rows
    (n_r, 4 in the authors' code) that are drawn afresh in each round; here of all that the server
    holds, always the same. The authors' code is told eta / rho, 200 in its example: with
    eta = 0.1 that is the default here, which does not follow `training.learning_rate`.

    Args:
        updates: The updates, (n, d).
        f: How many of them may be lies.
        context: Holds the server's own rows, `context.root`.
        rho: How much long updates are mistrusted.

    Example:
        >>> class Own:
        ...     def update(self):
        ...         return torch.tensor([2.0, 0.0])
        ...
        ...     def losses(self, updates):
        ...         return -updates[:, 0].double()
        >>> from holdout import stream
        >>> from holdout.rules import RuleContext
        >>> context = RuleContext(1, torch.zeros(2), 0.1, stream(0), root=Own())
        >>> zeno(torch.tensor([[2.0, 0.0], [1.0, 4.0], [-5.0, 0.0]]), f=1, context=context)
        tensor([1.5000, 2.0000])
    """
    chosen = zeno_choice(updates, f, context=context, rho=rho)
    return mean(updates.detach()[list(chosen)], f=0)


def zeno_choice(
    updates: Tensor, f: int, *, context: RuleContext | None = None, rho: float = RHO
) -> Sequence[int]:
    """The places of the updates that Zeno averages, in order."""
    updates = admit("zeno", updates, f=f, needs=ZENO_NEEDS)
    root = _root("zeno", context)
    finite = is_finite(updates)
    rows = (
        updates if finite.all() else torch.where(device.from_numpy(finite)[:, None], updates, 0.0)
    )
    told = root.losses(torch.cat([torch.zeros_like(rows[:1]), rows]))
    losses = device.to_numpy(told.detach()).astype(np.float64)
    with np.errstate(invalid="ignore"):  # Infinity less infinity is NaN, and out.
        scores = losses[0] - losses[1:] - rho * lengths_of(finite_rows(updates)) ** 2
    usable = finite & np.isfinite(scores)
    if not usable.any():
        raise InfeasibleError(f"zeno needs an update with a finite score; got n={len(updates)}")
    ranked = np.argsort(np.where(usable, -scores, np.inf), kind="stable")
    count = min(len(updates) - f, int(usable.sum()))
    return sorted(ranked[:count].tolist())


def fltrust_weights(gram: Rows, *, f: int) -> Rows | None:
    """The weights of FLTrust, from inner products; the last row is the server's own update.

    None where nobody agrees with it much: what little is left might be rounding.
    """
    del f
    norms = np.sqrt(gram.diagonal())
    towards = gram[:, -1] / np.where(norms > 0, norms, 1.0) / max(norms[-1], TINY)
    trust = np.maximum(towards, 0.0)
    trust[-1] = 0.0
    total = trust.sum()
    if not total > AGREED:
        return None
    weights: Rows = trust / total * norms[-1] / np.where(norms > 0, norms, 1.0)
    return weights


def zeno_weights(gram: Rows, *, f: int, told: Rows) -> Rows | None:
    """The weights of Zeno, from inner products and losses; the last row is no step at all."""
    n = len(gram) - 1
    if not np.isfinite(told).all():
        return None
    scores = told[-1] - told[:n] - RHO * gram.diagonal()[:n]
    ranked = np.argsort(-scores, kind="stable")
    inside, outside = ranked[: n - f], ranked[n - f :]
    if len(outside):
        last, first = inside[-1], outside[0]
        doubt = DOUBTFUL * (1 + np.abs(told).max() + RHO * gram.diagonal().max())
        are_twins = distances_of(gram[np.ix_([last, first], [last, first])])[0, 1] == 0
        if scores[last] - scores[first] <= doubt and not are_twins:
            return None
    weights = np.zeros(n + 1)
    weights[inside] = 1 / len(inside)
    return weights


def finite_rows(updates: Tensor) -> Rows:
    """The updates in float64, with zeros in the place of rows that are not finite."""
    rows: Rows = device.to_numpy(updates).astype(np.float64)
    rows[~is_finite(updates)] = 0.0
    return rows


def is_finite(updates: Tensor) -> npt.NDArray[np.bool_]:
    """Whether all numbers of a row are; in numpy, which takes a twentieth of torch's time."""
    found: npt.NDArray[np.bool_] = np.isfinite(device.to_numpy(updates)).all(axis=1)
    return found


def lengths_of(rows: Rows) -> npt.NDArray[np.float64]:
    """The L2 norm of each row, the same to the bit whatever the number of threads."""
    lengths: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return lengths


def _root(rule: str, context: RuleContext | None) -> Root:
    if context is None or context.root is None:
        raise MisuseError(f"{rule} needs a context with a root set, context.root")
    return context.root
