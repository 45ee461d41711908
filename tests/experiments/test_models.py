"""The trained models of a run: in memory, in its folder, exported; the same bytes every time."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests import tiny
from torch import nn

import holdout
from holdout import saved_models
from holdout.commands import run_command
from holdout.config.changes import curve_config_sha256
from holdout.curve_rows import CurveKey
from holdout.errors import RunFolderError
from holdout.experiments import runner
from holdout.experiments.plan import make_plan
from holdout.experiments.plugins import Plugins
from holdout.experiments.runner import run
from holdout.learning.models import MODELS
from holdout.learning.training import evaluate

CURVES = [
    ("mean", 0, "none"),
    ("mean", 0, "bomb"),
    ("holdout", 0, "bomb"),
    ("mean", 10, "none"),
    ("mean", 10, "bomb"),
    ("holdout", 10, "bomb"),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(runner, "write_report", lambda folder: folder / "report.html")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def kept(data, tmp_path_factory):
    """A run whose models of every second round are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "write_report", lambda folder: folder / "report.html")
        folder = tmp_path_factory.mktemp("kept") / "run"
        return run(tiny.values(data, experiment={"save_every": 2}), out=folder)


def models(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "model").iterdir())}


def test_the_weights_score_what_the_results_say(data, kept):
    """The one test that a model file of the wrong round, curve or layout cannot pass."""
    plan = make_plan(tiny.values(data))
    measured = {
        (row["rule"], row["seed"], row["attack"]): row
        for row in kept.rounds
        if row["accuracy"] is not None
    }
    for key in CURVES:
        model = MODELS["mlp"]((5,), 3)
        model.load_state_dict(kept.weights[key])
        score = evaluate(
            model, holdout.learning.flatten(model), plan.dataset.x_test, plan.dataset.y_test
        )
        assert score.accuracy == measured[key]["accuracy"]
        assert results_loss(score.loss) == measured[key]["loss"]


def results_loss(loss):
    return loss if torch.isfinite(torch.tensor(loss)) else None


def test_a_key_is_rule_and_seed_and_may_name_the_attack(kept):
    weights = kept.weights
    assert list(weights) == CURVES
    assert len(weights) == 6
    for name, tensor in weights["holdout", 0].items():
        assert torch.equal(tensor, weights["holdout", 0, "bomb"][name])
    assert not torch.equal(
        torch.cat([t.ravel() for t in weights["mean", 10, "none"].values()]),
        torch.cat([t.ravel() for t in weights["mean", 0, "none"].values()]),
    )
    for wrong in [
        ("krum", 0),
        ("mean", 5),
        ("mean", 0, "alie"),
        "mean",
        ("mean",),
        ("m", 0, "n", 1),
    ]:
        with pytest.raises(KeyError):
            weights[wrong]
    with pytest.raises(KeyError, match=r"no model of krum \(bomb, seed 0\); .* mean \(none, seed"):
        weights["krum", 0]
    assert "holdout (bomb, seed 10)" in repr(weights)


def test_in_memory_the_weights_are_the_same_and_each_caller_has_its_own(data, kept):
    result = run(tiny.values(data))
    assert list(result.weights) == CURVES
    for key in CURVES:
        for name, tensor in result.weights[key].items():
            assert (
                torch.equal(
                    tensor,
                    kept.weights[key][name],
                )
                or tensor.isnan().any()
            )
    result.weights["holdout", 0]["1.bias"].zero_()
    assert result.weights["holdout", 0]["1.bias"].any()


def test_a_run_that_is_read_gives_the_weights_and_reads_none_before_they_are_used(
    kept, monkeypatch
):
    monkeypatch.setattr(saved_models, "read", lambda path: path.name)
    found = holdout.read_run(kept.folder).weights
    assert list(found) == CURVES
    assert found["mean", 10, "none"] == "mean-none-seed-10.safetensors"
    assert list(holdout.read_run(kept).weights) == CURVES


def test_without_lies_the_mean_has_one_curve_under_both_keys(data):
    config = tiny.values(data, experiment={"rules": ["mean"], "seeds": [0]})
    config["attack"] = {"name": "none"}
    weights = run(config).weights
    assert list(weights) == [("mean", 0, "none")]
    assert torch.equal(weights["mean", 0]["1.bias"], weights["mean", 0, "none"]["1.bias"])


def test_files_are_named_tensors_that_say_what_they_are(kept):
    names = [*models(kept.folder)]
    assert "holdout-bomb-seed-0.safetensors" in names
    assert "holdout-bomb-seed-0-round-000002.safetensors" in names
    assert not [name for name in names if "round-000001" in name or "round-000003" in name]
    path = kept.folder / "model" / "holdout-bomb-seed-10-round-000002.safetensors"
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    assert len(told.pop("config_sha256")) == 64
    assert told == {
        "attack": "bomb",
        "classes": "3",
        "format": "pt",
        "holdout": holdout.__version__,
        "model": "mlp",
        "round": "2",
        "rule": "holdout",
        "sample_shape": "5",
        "seed": "10",
    }
    assert [*load_file(path)] == sorted(dict(MODELS["mlp"]((5,), 3).named_parameters()))


def test_the_hash_in_a_file_is_of_what_stays_when_a_run_goes_on(data, kept):
    def digest(**changes):
        config = make_plan(tiny.values(data, **changes)).config.as_dict()
        return curve_config_sha256(config)

    plain = digest()
    assert digest(experiment={"rounds": 9, "seeds": [4], "rules": ["krum"]}) == plain
    assert digest(training={"batch_size": 7}) != plain


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7, 8, 13])
def test_an_interrupted_run_leaves_the_same_models(data, kept, tmp_path, error, count):
    config = tiny.values(data, experiment={"save_every": 2})
    seen = []

    def watch(progress):
        seen.append(progress)
        if len(seen) == count:
            raise error

    with pytest.raises(error):
        run(config, out=tmp_path / "run", watch=watch)
    run(config, out=tmp_path / "run", resume=True)
    assert models(tmp_path / "run") == models(kept.folder)


def test_another_process_writes_the_same_bytes():
    """The order of a header's metadata must not depend on a hash that is seeded anew each time."""
    code = (
        "import sys, torch; from holdout.saved_models import encode;"
        "sys.stdout.buffer.write(encode({'b': torch.ones(3), 'a.w': torch.zeros(2, 2)},"
        "{str(i): 'x' for i in range(30)}))"
    )
    written = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
        for _ in range(3)
    }
    assert len(written) == 1
    assert len(written.pop()) % 4 == 0


def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))


def test_names_that_no_file_can_have_are_kept_all_the_same(data, tmp_path):
    def first(updates, *, f):
        return updates[0]

    name = "a/b: " + "é" * 300
    result = run(
        tiny.values(data, experiment={"rules": [name], "seeds": [0], "rounds": 1}),
        plugins=Plugins(rules={name: first}, model=linear),
        out=tmp_path / "run",
    )
    model = linear((5,), 3)
    model.load_state_dict(result.weights[name, 0])
    assert len(max(models(tmp_path / "run"), key=len)) < 255


# --- holdout export ---


def test_export_writes_the_file_that_was_asked_for(kept, tmp_path, capsys):
    told = ""
    for flags, name in [
        (["--seed", "0"], "holdout-bomb-seed-0"),
        (["--seed", "10", "--round", "2"], "holdout-bomb-seed-10-round-000002"),
        (["--seed", "10", "--round", "3"], "holdout-bomb-seed-10"),
        (["--seed", "0", "--attack", "none", "--rule", "mean"], "mean-none-seed-0"),
    ]:
        out = tmp_path / f"{name}.safetensors"
        asked = ["export", str(kept.folder), "--rule", "holdout", *flags, str(out)]
        assert run_command(asked) == 0
        assert out.read_bytes() == models(kept.folder)[out.name]
        assert run_command(asked) == 2
        printed = capsys.readouterr()
        assert f"{out} is there already" in printed.err
        told += printed.out
    assert "holdout (bomb, seed 10), round 2, model mlp" in told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--rule", "krum", "--seed", "0"], "has no curve krum (bomb, seed 0); its curves: mean"),
        (["--rule", "holdout", "--seed", "7"], "has no curve holdout (bomb, seed 7)"),
        (["--rule", "holdout", "--seed", "0", "--attack", "alie"], "has no curve holdout (alie"),
        (["--rule", "holdout"], "--seed must name one of the run's seeds: 0, 10"),
        (
            ["--rule", "holdout", "--seed", "0", "--round", "1"],
            "keeps no model of holdout (bomb, seed 0) after round 1; rounds that it keeps: 2, 3",
        ),
        (["--rule", "holdout", "--seed", "0", "--round", "0"], "must be at least 1"),
    ],
)
def test_export_says_what_there_is_instead(kept, tmp_path, capsys, flags, said):
    out = tmp_path / "model.safetensors"
    try:
        code = run_command(["export", str(kept.folder), *flags, str(out)])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_export_from_an_unfinished_run_and_of_a_damaged_file(data, tmp_path, capsys):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny.values(data), out=tmp_path / "run", watch=stop)
    asked = ["export", str(tmp_path / "run"), "--rule", "mean", "--attack", "none", "--seed", "0"]
    assert run_command([*asked, str(tmp_path / "out")]) == 2
    assert "no final model of mean (none, seed 0): the curve is not finished" in (
        capsys.readouterr().err
    )
    path = saved_models.file_of(tmp_path / "run", CurveKey("mean", "none", 0))
    path.parent.mkdir()
    path.write_bytes(b"nonsense")
    assert run_command([*asked, str(tmp_path / "out")]) == 2
    assert "is not a safetensors file" in capsys.readouterr().err
    with pytest.raises(RunFolderError, match="not a safetensors file"):
        holdout.read_run(tmp_path / "run").weights["mean", 0, "none"]
    path.unlink()
    run(tiny.values(data), out=tmp_path / "run", resume=True)
    assert run_command([*asked, str(tmp_path)]) == 2
    assert run_command([*asked, str(tmp_path / "no" / "out")]) == 2
