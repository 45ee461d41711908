"""The rows of a run, as `holdout.read_run` gives them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from holdout.curve_rows import NO_ATTACK, CurveKey, key_of, with_round_zero
from holdout.heterogeneity import Heterogeneity, measured_of
from holdout.saved_models import Weights, weights_of


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """The rounds of an experiment as plain rows, one per round, and the config they came from.

    A run can be iterated, indexed and measured with `len` like the list of its rows.

    >>> from holdout import Run
    >>> run = Run(None, {"experiment": {"rounds": 1}}, [{"rule": "mean", "round": 1}])
    >>> run, len(run), run[0]["rule"]
    (<Run: 1 round of mean>, 1, 'mean')
    """

    folder: Path | None
    """Where it was read from; None for a result that was never written."""
    config: Mapping[str, Any]
    """The complete config, by section and key."""
    rows: Sequence[Mapping[str, Any]]
    """One mapping a round: the lines of `results.jsonl`, whose fields docs/results-format.md
    describes, curve by curve in the order of the config."""
    weights: Weights = field(default_factory=lambda: weights_of(NO_ATTACK, {}))
    """The trained weights by rule and seed, as in `Result.weights`; read when they are used."""

    judges: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """By seed, for each class the share of honest workers that can judge it; empty if the run has
    no summary yet, or targets are real-valued."""

    def heterogeneity(self) -> list[Heterogeneity]:
        """How much honest workers differ and how many liars were drawn, one entry per curve."""
        curves: dict[CurveKey, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            curves.setdefault(key_of(row), []).append(row)
        return [
            Heterogeneity(*key, *measured_of(lines), self.judges.get(key.seed))
            for key, lines in curves.items()
        ]

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`, if pandas is there.

        What was measured before a curve's first step is a row of its own, of round 0, in which
        nobody was drawn and whose outcome is "initial".
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "Run.to_pandas needs pandas: pip install pandas", name=error.name
            ) from error
        return pd.DataFrame(with_round_zero(self.rows))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self.rows[place]

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(str(row.get("rule")) for row in self.rows))
        count = f"{len(self)} round{'s' * (len(self) != 1)}"
        name = "Run" if self.folder is None else f"Run {str(self.folder)!r}"
        return f"<{name}: {count}{f' of {rules}' if rules else ''}>"
