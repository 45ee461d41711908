"""The one table of rules: every entry tells all its parts, truly, and nothing else lists rules."""

import ast
import dataclasses
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.asking import called, context_of, with_context

import holdout
from holdout.attacks.search import strengths
from holdout.errors import InfeasibleError
from holdout.rules import PRE_AGGREGATIONS, RULES, Rule, mean
from holdout.rules.rule import LieLine, PreAggregation
from holdout.voting import VOTES

SOURCE = Path(holdout.__file__).parent
every_rule = pytest.mark.parametrize("name", RULES)


def random_updates(n=15, d=40, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("entry", [Rule, PreAggregation])
def test_an_entry_that_lacks_a_part_cannot_be_made(entry):
    # Without those that estimate an attacker runs the rule more often, and finds the same lie.
    estimates = {"mix", "weigh", "is_steady", "beside", "told", "farthest"}
    can_be_left_out = {"pre", "leaves", *estimates}
    parts = [f.name for f in dataclasses.fields(entry) if f.name not in can_be_left_out]
    known = {"label": "x", "keeps_rows": True}
    whole = {part: known.get(part) for part in parts}
    entry(**whole)
    for part in parts:
        with pytest.raises(TypeError, match=part):
            entry(**{name: value for name, value in whole.items() if name != part})


def test_labels_are_there_and_tell_rules_apart():
    labels = [entry.label for table in (RULES, PRE_AGGREGATIONS, VOTES) for entry in table.values()]
    assert all(labels)
    assert len(set(labels)) == len(labels)


@every_rule
@pytest.mark.parametrize("f", range(4))
def test_a_rule_that_chooses_is_the_mean_of_what_it_chooses(name, f):
    rule = RULES[name]
    if rule.choose is None:
        assert not rule.names_proposals
        return
    for seed in range(3):
        updates = random_updates(seed=seed)
        chosen = list(rule.choice(updates, f=f, context=context_of(updates)))
        assert torch.allclose(called(rule)(updates, f=f), mean(updates[chosen], f=0), atol=1e-6)


@every_rule
@pytest.mark.parametrize("f", range(4))
def test_needs_tell_exactly_when_the_function_is_feasible(name, f):
    rule = RULES[name]
    function = rule.function
    if not rule.needs_updates_alone:
        function = partial(with_context, rule.function)
    for n in range(1, 4 * f + 6):
        if rule.is_feasible(n=n, f=f):
            function(random_updates(n=n), f=f)
        else:
            with pytest.raises(InfeasibleError, match=re.escape(rule.needs.bound)):
                function(random_updates(n=n), f=f)


@every_rule
def test_a_rule_without_rehearsal_follows_a_lie_of_any_strength(name):
    rule = RULES[name]
    honest = random_updates(13)
    ladder = strengths(1e4)
    line = LieLine(
        honest,
        honest.mean(dim=0),
        honest.std(dim=0),
        copies=2,
        f=2,
        ladder=ladder,
        context=lambda: context_of(honest),
    )
    here, there = (called(rule)(line.updates(strength), f=2) for strength in (1e2, 1e4))
    if rule.rehearse is None:
        assert not torch.equal(here, there)
    else:
        foresee = rule.rehearse(line)
        assert foresee(0.0)
        assert not foresee(1e4)


def test_no_other_table_lists_rules():
    names = {*RULES, *VOTES, *PRE_AGGREGATIONS}
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).as_posix() in {"rules/table.py", "voting/terms.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            keys = node.keys if isinstance(node, ast.Dict) else []
            texts = {key.value for key in keys if isinstance(key, ast.Constant)}
            if len(texts & names) > 1:
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert found == []
