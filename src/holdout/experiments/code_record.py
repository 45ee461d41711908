"""Which custom code a run was made by: a hash of its source, kept in the run folder.

A run that is resumed must go on with the code it was begun with; if it is extended, a rule that is
added may bring code of its own. The source of a function or class is the whole file of its module,
so that a helper in the same file counts; of one that is defined in a script or a notebook, where
other lines may change without harm, only its own lines. What is typed
at Python's prompt has no source to be found: nothing can be checked, and a note says so.
"""

import dataclasses
import hashlib
import inspect
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdout.curve_rows import planned_rules
from holdout.dotted import resolve
from holdout.errors import RunFolderError
from holdout.experiments.plan import ExperimentPlan
from holdout.results import RunFolder, Stored, to_json
from holdout.rules import Rule
from holdout.tracebacks import is_custom, module_of, unwrapped

FILE = "custom_code.json"
SIZE_MAX = 1 << 20

Sources = Mapping[str, Mapping[str, str] | None]
"""For each custom part its file and hash; None: it has no source."""


def sources_of(plan: ExperimentPlan) -> Sources:
    """The custom code that takes part in an experiment."""
    return _sources(plan, [curve.rule for curve, _ in plan.curves])


def known_sources(plan: ExperimentPlan, before: Stored) -> Sources:
    """The same without the code of rules that the stored run did not have."""
    return _sources(plan, {rule for rule, _ in planned_rules(before.config)})


def _sources(plan: ExperimentPlan, rules: Collection[str]) -> Sources:
    return {name: source_of(code) for name, code in _parts(plan, rules).items() if is_custom(code)}


def _parts(plan: ExperimentPlan, rules: Collection[str]) -> dict[str, object]:
    config, plugins = plan.config, plan.plugins
    parts: dict[str, object] = {}
    for curve, _ in plan.curves:
        if isinstance(rule := curve.method, Rule) and curve.rule in rules:
            parts[f"rule {curve.rule!r}"] = rule.function
            parts |= {
                f"pre-aggregation {p.label!r} of {curve.rule!r}": p.function for p in rule.pre
            }
        if curve.act is not None:
            parts[f"attack {config.attack.name!r}"] = curve.act
            parts[f"ballots {config.attack.voters!r}"] = curve.ballot_attack
    parts[f"model {config.model.name!r}"] = plan.factory
    if plugins.data is None and ":" in config.data.name:
        parts[f"data {config.data.name!r}"] = resolve(config.data.name)
    if plugins.worker is not None:
        parts["worker"] = plugins.worker
    return parts


def source_of(code: object) -> Mapping[str, str] | None:
    """The file and hash of what makes an object; None: it has no source."""
    found = unwrapped(code)
    kind: Any = found if inspect.isroutine(found) or isinstance(found, type) else type(found)
    module = sys.modules.get(module_of(code))
    file = getattr(module, "__file__", None)
    try:
        if module is None or module.__name__ == "__main__" or not file:
            content = inspect.getsource(kind).encode()
            file = inspect.getsourcefile(kind)
        else:
            content = Path(file).read_bytes()
    except (OSError, TypeError):
        return None
    # The fields of an object decide what it does, too.
    if dataclasses.is_dataclass(found) and " at 0x" not in repr(found):
        content += repr(found).encode()
    return {"file": Path(file or "").name, "sha256": hashlib.sha256(content).hexdigest()}


def store(folder: RunFolder, sources: Sources, changes: Sequence[str] = ()) -> None:
    """Keep in the run folder which code a run is made by; nothing where there is none."""
    if sources or changes:
        content = {"parts": sources, "changes": list(changes)}
        folder.write(FILE, to_json(content, indent=1) + "\n")


def stored(path: Path) -> tuple[Sources, list[str]]:
    """The code that a run folder was begun with, and what was noted when it changed."""
    file = path / FILE
    try:
        if not file.exists():
            return {}, []
        if file.stat().st_size > SIZE_MAX:
            raise ValueError("too large")  # noqa: TRY301
        content = json.loads(file.read_text("utf-8"))
        parts, changes = content["parts"], content["changes"]
        if not isinstance(parts, dict) or not all(isinstance(note, str) for note in changes):
            raise ValueError("not as it was written")  # noqa: TRY301
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{file} is damaged ({error}); the run cannot be resumed") from error
    return parts, list(changes)


def differences(then: Sources, now: Sources) -> list[str]:
    """The parts whose code is not what it was, with their files."""
    return [
        f"{name}{_file(now.get(name) or then.get(name))}"
        for name in dict.fromkeys([*then, *now])
        if name not in then or name not in now or then[name] != now[name]
    ]


def refuse_changes(path: Path, now: Sources) -> None:
    """Refuse to resume a run by other custom code than it was begun with."""
    changed = differences(stored(path)[0], now)
    if changed:
        raise RunFolderError(
            f"{path}: custom code has changed since the run began: {', '.join(changed)}; go back "
            "to what it was, or go on all the same with --resume --changed-code (from Python: "
            "changed_code=True), which leaves a note"
        )


def notes_on_changes(plan: ExperimentPlan, path: Path, before: Stored | None) -> list[str]:
    """A note for each time that the run went on with changed code, now included."""
    then, changes = stored(path)
    if before is None or not before.rows:
        return changes
    changed = differences(then, known_sources(plan, before))
    if not changed:
        return changes
    last = before.rows[-1]
    where = f"round {last['round']} of {last['rule']} ({last['attack']}, seed {last['seed']})"
    return [*changes, f"custom code was changed after {where}: {', '.join(changed)}"]


def notes_on_sources(now: Sources) -> list[str]:
    """What cannot be checked when such a run is resumed."""
    without = [name for name, source in now.items() if source is None]
    if not without:
        return []
    return [f"no source was found of {', '.join(without)}: whether it changes cannot be told"]


def _file(source: Mapping[str, str] | None) -> str:
    return f" ({source['file']})" if isinstance(source, Mapping) and source.get("file") else ""
