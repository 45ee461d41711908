"""Turn run folders into the small JSON files of docs/results, and read those strictly.

Usage: python tools/paper_results.py RUNS_DIR

A file holds experiments (see `paper_experiments`), and an experiment holds strands, each of one
rule and one seed. A strand is published as far as it was run; `rounds` says how far. What a file
already holds stays, unless the run folders hold the same strand, run at least as far.

    final_accuracy                 the last accuracy measured, between 0 and 1
    lowest_after_20                the lowest measured after round 20; null if none was measured
    byzantine_accepted_per_round   lies in the selection; null for a rule that names nobody
    empty_rounds                   rounds without a step
    worst_class_recall             of the class recognised worst, when last measured
    gamma                          the median of the strengths chosen; null if there were none
    overflow_rounds                rounds with more liars proposing than a full ballot leaves out
    curve                          [round, accuracy], thinned
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from paper_experiments import EXPERIMENTS, Experiment, Step
from paper_queue import environment_file, read_lines
from pydantic import BaseModel, ConfigDict, Field

from holdout.config import Config, parse, read_file
from holdout.curve_rows import MOVED
from holdout.results import CONFIG, write_atomic
from holdout.voting import approve_count

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"
SCHEMA = 1
EARLY_ROUNDS = 20
POINTS = 25
SEEDS_MAX = 100

Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    """A value that refuses unknown keys and wrong types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Strand(_Strict):
    """One rule and one seed of an experiment."""

    rule: str
    attack: str
    seed: int
    rounds: int
    outcome: Literal["completed", "diverged", "unfinished"]
    final_accuracy: Share
    lowest_after_20: Share | None
    byzantine_accepted_per_round: Annotated[float, Field(ge=0)] | None
    empty_rounds: int
    worst_class_recall: Share
    gamma: float | None
    overflow_rounds: int
    curve: list[tuple[int, Share]]


class Measured(_Strict):
    """An experiment, as far as it was run."""

    name: str
    command: str
    rounds: int
    environments: list[dict[str, str | int]]
    strands: list[Strand]


class ResultsFile(_Strict):
    """The content of a JSON file of docs/results."""

    version: Literal[1] = Field(alias="schema")
    experiments: list[Measured]


def main() -> None:
    """Write every results file for which there are results."""
    runs = Path(sys.argv[1])
    FOLDER.mkdir(exist_ok=True)
    for file in dict.fromkeys(experiment.file for experiment in EXPERIMENTS.values()):
        published = read(file)
        found = [
            m
            for e in EXPERIMENTS.values()
            if e.file == file and (m := merged(e, published.get(e.name), collect(e, runs)))
        ]
        if found:
            write_atomic(FOLDER / f"{file}.json", to_text(found).encode())


def read(file: str, folder: Path = FOLDER) -> dict[str, Measured]:
    """The experiments of a results file by name; empty if there is no file."""
    path = folder / f"{file}.json"
    if not path.exists():
        return {}
    content = ResultsFile.model_validate_json(path.read_bytes())
    return {measured.name: measured for measured in content.experiments}


def merged(experiment: Experiment, old: Measured | None, new: Measured | None) -> Measured | None:
    """The published results of an experiment, joined with those of new runs."""
    if old is None or new is None:
        return old or new
    if old.command != experiment.command:
        raise SystemExit(f"{old.name} is published with other settings than the table has now")
    strands = {(s.rule, s.seed): s for s in old.strands}
    for strand in new.strands:
        known = strands.get((strand.rule, strand.seed))
        if known is None or strand.rounds >= known.rounds:
            strands[strand.rule, strand.seed] = strand
    order = sorted(strands, key=lambda key: (experiment.rules.index(key[0]), key[1]))
    kept = [e for e in old.environments if e not in new.environments]
    return new.model_copy(
        update={
            "environments": [*kept, *new.environments],
            "strands": [strands[key] for key in order],
        }
    )


def collect(experiment: Experiment, runs: Path) -> Measured | None:
    """The results in an experiment's run folders; None if no accuracy was measured yet."""
    strands: list[Strand] = []
    environments: dict[str, dict[str, str | int]] = {}
    for rule in experiment.rules:
        for seed in range(SEEDS_MAX):
            folder = Step(experiment, rule, seed).folder(runs)
            rounds = [json.loads(line) for line in read_lines(folder)]
            if not rounds:
                continue
            config = parse(experiment.values(rule=rule, seed=seed, data=runs)).checked()
            if _without_path(read_file(folder / CONFIG)) != _without_path(config.as_dict()):
                raise SystemExit(f"{folder} was run with other settings than the table has now")
            if strand := summarise(rounds, config):
                strands.append(strand)
                for line in environment_file(folder).read_text("utf-8").splitlines():
                    environments[line] = json.loads(line)
    if not strands:
        return None
    return Measured(
        name=experiment.name,
        command=experiment.command,
        rounds=experiment.rounds,
        environments=list(environments.values()),
        strands=strands,
    )


def _without_path(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the path of its data, which does not change the results."""
    return {**values, "data": {k: v for k, v in values["data"].items() if k != "path"}}


def summarise(rounds: Sequence[Mapping[str, Any]], config: Config) -> Strand | None:
    """The strand that the lines of its results give; None if no accuracy was measured yet."""
    evaluated = [line for line in rounds if line["accuracy"] is not None]
    if not evaluated:
        return None
    points = [(line["round"], _rounded(line["accuracy"])) for line in evaluated]
    late = [accuracy for number, accuracy in points if number > EARLY_ROUNDS]
    accepted = [n for line in rounds if (n := line["byzantine_selected"]) is not None]
    strengths = [gamma for line in rounds if (gamma := line["gamma"]) is not None]
    proposers = config.federation.proposers
    left_out = proposers - approve_count(proposers, config.federation.f)
    last = rounds[-1]
    outcome: Literal["completed", "diverged", "unfinished"] = "completed"
    if last["outcome"] == "diverged":
        outcome = "diverged"
    elif last["round"] < config.experiment.rounds:
        outcome = "unfinished"
    return Strand(
        rule=last["rule"],
        attack=last["attack"],
        seed=last["seed"],
        rounds=last["round"],
        outcome=outcome,
        final_accuracy=points[-1][1],
        lowest_after_20=min(late, default=None),
        byzantine_accepted_per_round=_rounded(sum(accepted) / len(accepted)) if accepted else None,
        empty_rounds=sum(line["outcome"] not in MOVED for line in rounds),
        worst_class_recall=_rounded(evaluated[-1]["worst_class_recall"]),
        gamma=_rounded(median(strengths)) if strengths else None,
        overflow_rounds=sum(line["byzantine_proposers"] > left_out for line in rounds),
        curve=thinned(points, rounds=config.experiment.rounds),
    )


def thinned(points: Sequence[tuple[int, float]], *, rounds: int) -> list[tuple[int, float]]:
    """About `POINTS` points, at the same rounds in each curve, and always the last one."""
    every = points[0][0]
    spacing = every * math.ceil(rounds / POINTS / every)
    return [point for point in points if point[0] % spacing == 0 or point is points[-1]]


def to_text(found: Iterable[Measured]) -> str:
    """JSON with a line for each strand, so that a change shows as the lines that changed."""
    parts = []
    for measured in found:
        head = measured.model_dump(exclude={"strands"})
        strands = ",\n    ".join(
            json.dumps(s.model_dump(), ensure_ascii=False) for s in measured.strands
        )
        opening = json.dumps(head, ensure_ascii=False)[:-1]
        parts.append(f'  {opening},\n   "strands": [\n    {strands}]}}')
    return f'{{"schema": {SCHEMA}, "experiments": [\n' + ",\n".join(parts) + "]}\n"


def _rounded(value: float) -> float:
    return round(value, 4)


if __name__ == "__main__":
    main()
