"""The examples' own client and server functions, in one process: they learn, with a liar or two."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from tests.flower.flower_grid import EXAMPLE, FakeGrid
from tests.flower.test_example import KINDS

EXAMPLES = EXAMPLE.parent


def run(monkeypatch, capsys, name: str, nodes: int, **config) -> list[float]:
    """The accuracies that the example prints."""
    package = name.replace("-", "_")
    monkeypatch.syspath_prepend(str(EXAMPLES / name))
    server, client = (
        importlib.import_module(f"{package}.{part}") for part in ("server_app", "client_app")
    )
    given = settings(EXAMPLES / name) | config

    def node(number: int):
        place = {"partition-id": number, "num-partitions": nodes}
        return lambda message: client.app(message, Context(1, 1, place, RecordDict(), given))

    grid = FakeGrid({100 + number: node(number) for number in range(nodes)})
    server.main(grid, Context(1, 1, {}, RecordDict(), given))
    printed = capsys.readouterr().out
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    return [float(found) for found in re.findall(r"round +\d+: accuracy ([\d.]+)", printed)]


def settings(folder: Path) -> dict:
    text = (folder / "pyproject.toml").read_text("utf-8")
    return tomllib.loads(text)["tool"]["flwr"]["app"]["config"]


@pytest.mark.slow
def test_scikit_learn_with_two_liars(monkeypatch, capsys):
    found = run(monkeypatch, capsys, "flower-sklearn", 10, **{"num-server-rounds": 4})
    assert len(found) == 5
    assert found[-1] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["none", pytest.param("fedadam", marks=pytest.mark.soak)])
def test_batch_norm_with_a_liar(monkeypatch, capsys, inner):
    found = run(monkeypatch, capsys, "flower-batchnorm", 8, inner=inner)
    assert len(found) == 5
    assert found[-1] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "byzantine"),
    [("holdout", "sign-flip"), ("holdout", "bomb"), ("holdout-1", "bomb")],
)
def test_digits_with_two_liars(monkeypatch, capsys, strategy, byzantine):
    found = run(
        monkeypatch,
        capsys,
        "flower-mnist",
        10,
        strategy=strategy,
        byzantine=byzantine,
        **{"num-server-rounds": 2},
    )
    assert found[-1] > 0.5


def test_a_lie_that_there_is_not_is_refused_and_all_others_are_named(monkeypatch, capsys):
    """Its clients would be honest, and the run would pass for one under attack."""
    with pytest.raises(ValueError, match="byzantine = 'sign_flip': must be one of none, alie") as e:
        run(monkeypatch, capsys, "flower-mnist", 10, byzantine="sign_flip")
    named = str(e.value).partition("one of ")[2].split(", ")
    settings_text = (EXAMPLES / "flower-mnist" / "pyproject.toml").read_text("utf-8")
    assert f"# {' | '.join(named)}\n" in settings_text
    assert set(KINDS) | {"none"} == set(named)
