"""The command line as a user meets it: exit codes, what goes where, Ctrl-C, real processes."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w
from tests import tiny

import holdout
from holdout import __version__
from holdout.commands import run_command
from holdout.experiments import figures
from holdout.experiments.reproduce import FIGURES

SOURCE = Path(holdout.__file__).parents[1]
HOLDOUT = [sys.executable, "-m", "holdout"]
CALM = {"name": "sign-flip", "scale": 1.0}
DEADLINE = 60  # Seconds; a process that takes longer is stuck.
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")

# A rule that stops for good in its fourth round, unless a file `go` says to go on.
BLOCKING_RULE = """
import threading
from pathlib import Path

calls = 0

def rule(updates, *, f):
    global calls
    calls += 1
    # Before the first round it is tried twice.
    if calls == 2 + 4 and not Path("go").exists():
        Path("reached").touch()
        threading.Event().wait(60)
    return updates.mean(dim=0)
"""


@pytest.fixture
def beside_us(tmp_path, monkeypatch):
    """An empty working directory; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.fixture
def _small_page(monkeypatch):
    """The picture's every dot tells most tests nothing."""
    monkeypatch.setattr(figures, "DPI", 30)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def config(beside_us):
    """`tiny.toml` in the working directory, one seed."""
    return write_config(beside_us, experiment={"seeds": [0]})


def write_config(folder, **changes):
    path = folder / "tiny.toml"
    path.write_text(tomli_w.dumps(tiny.values(tiny.write_data(folder), **changes)))
    return path


def refused(capsys, *arguments):
    """Run a command that must fail as a mistake of the user's; its message."""
    assert run_command([str(a) for a in arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    return output.err


# --- Without a run ---


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_and_version_load_nothing_heavy(arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "holdout", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    loaded = set(re.findall(r"\|\s+(\w+)", done.stderr))
    assert "argparse" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "scipy", "pydantic", "matplotlib", "rich"})
    assert ("holdout " + __version__ in done.stdout) == (arguments == ["--version"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run", "--sett", "a.b=c"],
        ["run", "--res"],
        ["plan"],
        ["plan", "--workers", "100"],
        ["report"],
        ["run", "a.toml", "b.toml"],
    ],
)
def test_a_command_that_is_none_exits_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        run_command(arguments)
    assert caught.value.code == 2
    assert "usage: holdout" in capsys.readouterr().err


def plan(**changes):
    options = {"workers": 100, "byzantine": 0.33, "rounds": 100, "delta": 0.05} | changes
    return ["plan", *(part for k, v in options.items() for part in (f"--{k}", str(v)))]


def test_plan_prints_exactly_one_json_document(capsys):
    assert run_command([*plan(committee=30), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    assert document["majority_failure_round"] == pytest.approx(0.01736, abs=5e-6)
    assert document["overflow_round"] == pytest.approx(0.5694, abs=5e-5)


def test_plan_speaks_to_people_too(capsys):
    assert run_command(plan(byzantine="1/3")) == 0
    assert "100 workers, 33 of them Byzantine (f = 1/3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [
        {"byzantine": 0.5},
        {"byzantine": 50},
        {"byzantine": 10**400},
        {"byzantine": "2/3"},
        {"committee": 101},
    ],
)
def test_a_plan_without_a_solution_exits_2(capsys, changes):
    assert refused(capsys, *plan(**changes)).startswith("holdout: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0}, "--delta: must lie between 0 and 1; got 0"),
        ({"delta": 1}, "--delta: must lie between 0 and 1; got 1"),
        ({"delta": "nan"}, "--delta: must lie between 0 and 1; got nan"),
        ({"delta": "small"}, "--delta: must be a number; got 'small'"),
        ({"workers": 0}, "--workers: must be at least 1; got 0"),
        ({"workers": "many"}, "--workers: must be a whole number; got 'many'"),
        ({"workers": 1.5}, "--workers: must be a whole number; got '1.5'"),
        ({"rounds": -1}, "--rounds: must be at least 1; got -1"),
        ({"byzantine": "nan"}, "--byzantine: must be a share"),
        ({"byzantine": "1e-999999999"}, "--byzantine: must be a share"),
        ({"byzantine": -1}, "--byzantine: must not be negative"),
        ({"byzantine": 1.5}, "--byzantine: must be a share below 1"),
        ({"byzantine": 1.0}, "--byzantine: must be a share below 1"),
        ({"byzantine": "1e400"}, "--byzantine: must be a share below 1"),
        ({"committee": 0}, "--committee: must be at least 1; got 0"),
    ],
)
def test_a_nonsensical_plan_exits_2(capsys, changes, message):
    # With `=`, so that a negative number is not taken for an option.
    name, *rest = plan(**changes)
    joined = [f"{key}={value}" for key, value in zip(rest[::2], rest[1::2], strict=True)]
    with pytest.raises(SystemExit) as caught:
        run_command([name, *joined])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def network(*more, byzantine="0.2"):
    return ["plan", "--decentralized", *("--workers", "100", "--byzantine", byzantine), *more]


def test_plan_knows_networks_without_a_server(capsys):
    assert run_command(network("--rounds", "1000", "--json")) == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    assert (document["committee"], document["quorum"], document["tau_V"]) == (100, 67, 59)
    assert run_command(network("--rounds", "1000", "--delta-safety", "0.001")) == 0
    assert "Not guaranteed:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (network("--rounds", "9", byzantine="34"), "n >= 3B + 1 workers"),
        (network("--rounds", "9", "--delta", "0.1"), "--delta cannot be used with --decentralized"),
        (network("--rounds", "9", "--committee", "9"), "--committee cannot be used with"),
        ([*plan(), "--delta-safety", "0.1"], "--delta-safety needs --decentralized"),
        ([*plan(), "--delta-progress", "0.1"], "--delta-progress needs --decentralized"),
        (plan()[:-2], "plan needs --delta D, or --decentralized"),
    ],
)
def test_options_of_the_two_halves_do_not_mix(capsys, arguments, message):
    error = refused(capsys, *arguments)
    assert error.startswith("holdout: ")
    assert message in error


# --- A run ---


@pytest.mark.usefixtures("_small_page")
def test_a_run_prints_table_and_report_and_lines_of_progress(config, capsys):
    assert run_command(["run", str(config), "--out", "out"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Test accuracy at the end (tiny)")
    assert output.out.endswith("\nreport: out/report.html\n")
    assert "%  holdout (bomb, seed 0): round 3, accuracy" in output.err
    assert not CONTROL.search(output.out + output.err)
    assert sorted(p.name for p in Path("out").iterdir()) == [
        ".lock",
        "accuracy.png",
        "checkpoint",
        "config.toml",
        "loss.png",
        "model",
        "report.html",
        "results.jsonl",
        "shards.json",
        "summary.json",
        "worst_class_recall.png",
    ]


@pytest.mark.usefixtures("_small_page")
def test_without_out_runs_are_numbered(config, capsys):
    for _ in range(2):
        assert run_command(["run", str(config), "--set", "experiment.rounds=1"]) == 0
    assert run_command(["run", str(config), "--set", "experiment.rounds=1", "--resume"]) == 0
    capsys.readouterr()
    assert sorted(p.name for p in Path("runs").iterdir()) == ["tiny", "tiny-2"]
    assert tiny.rounds(Path("runs/tiny")) == tiny.rounds(Path("runs/tiny-2"))


@pytest.mark.usefixtures("_small_page")
def test_the_stored_config_reproduces_a_run_with_settings(config, capsys):
    settings = ["--set", "federation.byzantine=1/3", "--set", 'experiment.rules=["holdout"]']
    assert run_command(["run", str(config), *settings, "--out", "a"]) == 0
    assert run_command(["run", "a/config.toml", "--out", "b"]) == 0
    capsys.readouterr()
    assert tomllib.loads(Path("a/config.toml").read_text())["federation"]["byzantine"] == "1/3"
    assert Path("a/config.toml").read_bytes() == Path("b/config.toml").read_bytes()
    assert tiny.rounds(Path("a")) == tiny.rounds(Path("b"))


@pytest.mark.usefixtures("_small_page")
def test_own_code_beside_the_config_is_found(config, beside_us, capsys):
    (beside_us / "own_cli_code.py").write_text(
        "def rule(updates, *, f):\n    return updates.mean(dim=0)\n"
        "def attack(view, power):\n    return -power * view.mean\n"
    )
    values = tomllib.loads(config.read_text())
    values["experiment"]["rules"] = ["own_cli_code:rule"]
    values["attack"] = {"name": "own_cli_code:attack", "power": 2.0}
    config.write_text(tomli_w.dumps(values))
    assert run_command(["run", str(config), "--out", "out"]) == 0
    assert "own_cli_code:rule" in capsys.readouterr().out


@pytest.mark.usefixtures("_small_page")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0", "rule 'own_bad_rule:rule' raised ZeroDivisionError: division by zero"),
        ("return updates", "rule 'own_bad_rule:rule' must return floats of shape (903,); got"),
    ],
)
def test_own_code_that_fails_exits_2_with_its_name(config, beside_us, capsys, body, message):
    (beside_us / "own_bad_rule.py").write_text(f"def rule(updates, *, f):\n    {body}\n")
    assert run_command(["run", str(config), "--set", 'experiment.rules=["own_bad_rule:rule"]']) == 2
    output = capsys.readouterr()
    # Before any curve begins, in one line that names the file and the line.
    assert output.err.startswith(f"holdout: {message}")
    assert re.search(r" \(own_bad_rule\.py, line [12]\)\n$", output.err)
    assert output.err.count("\n") == 1
    assert not Path("runs").exists()
    assert "Traceback" not in output.err


def test_all_mistakes_are_told_and_no_folder_is_made(config, capsys):
    message = refused(
        capsys,
        "run",
        config,
        *["--set", "experiment.rounds=-1", "--set", "experiment.roundz=3"],
        *["--set", "attack.name=nothing", "--set", "training.learning_rate=nan"],
        *["--set", 'experiment.rules=["kum"]', "--set", "federation.assumed_byzantine=0.5"],
    )
    assert message.startswith("holdout: 6 mistakes in the config:\n")
    for key in (
        "experiment.rounds = -1",
        "experiment.roundz = 3",
        "attack.name = 'nothing'",
        "training.learning_rate = nan",
        "experiment.rules = 'kum'",
        "federation.assumed_byzantine = 0.5",
    ):
        assert f"  {key}: " in message
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "values",
    [
        "federation.proposers=9",
        "vote.samples=31",
        "training.batch_size=31",
        "data.samples_per_worker=121",
        "federation.assumed_byzantine=1/2",
        'experiment.rules=["bulyan"]',
        "experiment.seeds=[1,1]",
        "experiment.rules=[]",
        "experiment.name=a/b",
        "data.path=nowhere.npz",
        "data.name=nowhere_at_all:loader",
        "rounds=3",
        "experiment.rounds",
    ],
)
def test_a_mistake_exits_2_and_makes_no_folder(config, capsys, values):
    message = refused(capsys, "run", config, "--set", values, "--out", "out")
    assert values.partition("=")[0] in message or "nowhere" in message
    assert not Path("out").exists()


def test_a_missing_sweep_is_refused_with_the_names_of_those_that_come_with_holdout(
    beside_us, capsys
):
    message = refused(capsys, "sweep", "vote-famly")
    assert "vote-famly: there is no such file; vote-family and wrong-share come" in message


def test_a_missing_or_broken_config_is_named(beside_us, capsys):
    assert "missing.toml: cannot be read" in refused(capsys, "run", "missing.toml")
    (beside_us / "broken.toml").write_text("rounds = ")
    assert "broken.toml: not TOML" in refused(capsys, "run", "broken.toml")


def test_without_data_or_network_there_is_one_message(config, capsys, monkeypatch):
    monkeypatch.setenv("HOLDOUT_DATA", "cache")
    # Nobody listens there.
    monkeypatch.setenv("HOLDOUT_MIRROR_MNIST", "http://127.0.0.1:9/")
    values = tomllib.loads(config.read_text())
    values["data"] = {"name": "mnist", "samples_per_worker": 30}
    config.write_text(tomli_w.dumps(values))
    message = refused(capsys, "run", config, "--out", "out")
    assert message.count("holdout: ") == 1
    assert "mnist is not in" in message
    assert "data.path" in message
    assert not Path("out").exists()


def test_a_taken_folder_is_refused_and_left_alone(config, capsys):
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    assert "exists and is not empty" in refused(capsys, "run", config, "--out", "out")
    assert "not a folder" in refused(capsys, "run", config, "--out", "tiny.toml/below")
    assert "is not a run folder" in refused(capsys, "run", config, "--out", "out", "--resume")
    assert "is not a run folder" in refused(capsys, "run", "--out", "new", "--resume")
    assert "is not a run folder" in refused(capsys, "run", config, "--resume")
    assert tiny.contents(Path("out")) == {"mine.txt": b"mine"}
    assert not Path("new").exists()


@pytest.mark.usefixtures("_small_page")
def test_resuming_with_another_config_or_a_damaged_checkpoint_changes_nothing(config, capsys):
    assert run_command(["run", str(config), "--out", "out"]) == 0
    capsys.readouterr()
    before = tiny.contents(Path("out"))
    again = ["run", config, "--out", "out", "--resume"]
    assert "experiment.rounds was 3, is 4; vote.samples was 10, is 9" in refused(
        capsys, *again, "--set", "experiment.rounds=4", "--set", "vote.samples=9"
    )
    assert "exists and is not empty" in refused(capsys, "run", config, "--out", "out")
    assert tiny.contents(Path("out")) == before
    checkpoint = Path("out/checkpoint/state.npz")
    for damage in (b"", b"PK", checkpoint.read_bytes()[:-1]):
        checkpoint.write_bytes(damage)
        damaged = tiny.contents(Path("out"))
        assert "is damaged" in refused(capsys, *again)
        assert tiny.contents(Path("out")) == damaged


@pytest.mark.usefixtures("_small_page")
def test_a_name_that_looks_like_markup_is_printed_as_it_is(config, capsys):
    assert run_command(["run", str(config), "--out", "out"]) == 0
    capsys.readouterr()
    path = Path("out/results.jsonl")
    path.write_text(path.read_text().replace('"rule": "holdout"', '"rule": "[/red]:smile:"'))
    assert run_command(["report", "out"]) == 0
    assert "[/red]:smile:" in capsys.readouterr().out


@pytest.mark.usefixtures("_small_page")
def test_a_run_is_extended_tabulated_and_its_models_exported(config, capsys):
    """The commands one after the other, as a user has them."""
    assert run_command(["run", str(config), "--out", "out", "--save-every", "2"]) == 0
    again = ["run", "--out", "out", "--resume", "--set"]
    assert run_command([*again, "experiment.rounds=4"]) == 0
    assert run_command(["report", "out", "--csv"]) == 0
    assert capsys.readouterr().out.endswith("table: out/results.csv\n")
    lines = Path("out/results.csv").read_text().splitlines()
    assert lines[0].startswith("rule,attack,seed,round,outcome,accuracy,loss")
    assert sum(line.startswith("holdout,bomb,0,") for line in lines) == 5
    chosen = ["export", "out", "--rule", "holdout", "--seed", "0"]
    assert run_command([*chosen, "--round", "2", "two.safetensors"]) == 0
    assert run_command([*chosen, "four.safetensors"]) == 0
    assert capsys.readouterr().out == (
        "two.safetensors: holdout (bomb, seed 0), round 2, model mlp\n"
        "four.safetensors: holdout (bomb, seed 0), round 4, model mlp\n"
    )


@pytest.mark.usefixtures("_small_page")
def test_a_file_that_cannot_be_written_is_named_without_a_number(config, capsys):
    assert run_command(["run", str(config), "--out", "out"]) == 0
    capsys.readouterr()
    assert run_command(["export", "out", "--rule", "holdout", "/proc/model.safetensors"]) == 1
    assert re.fullmatch(r"holdout: /proc/\S*: No such file or directory\n", capsys.readouterr().err)


def test_custom_code_may_import_its_neighbours_when_it_is_called(tmp_path, config):
    (tmp_path / "neighbour.py").write_text("NAMES = ('x_train', 'y_train', 'x_test', 'y_test')\n")
    (tmp_path / "late.py").write_text(
        "import numpy as np\n\n\ndef load():\n    import neighbour\n\n"
        "    return tuple(np.load('points.npz')[name] for name in neighbour.NAMES)\n"
    )
    command = [sys.executable, "-P", "-m", "holdout", "run", str(config), "--out", "late"]
    subprocess.run([*command, "--set", "data.name=late:load"], cwd=tmp_path, check=True)
    assert (tmp_path / "late" / "summary.json").exists()


# --- A report ---


def test_a_report_is_made_again_from_results_alone_with_the_same_bytes(config, capsys):
    assert run_command(["run", str(config), "--out", "out"]) == 0
    table = capsys.readouterr().out
    names = ("accuracy.png", "report.html")
    before = {name: Path("out", name).read_bytes() for name in names}
    for name in names:
        Path("out", name).unlink()
    assert run_command(["report", "out"]) == 0
    again = capsys.readouterr().out
    assert again.replace("(out)", "(tiny)").split() == table.split()
    assert {name: Path("out", name).read_bytes() for name in names} == before

    # The summary holds nothing of the results but a digest, and the versions that were used.
    Path("out/summary.json").unlink()
    assert run_command(["report", "out"]) == 0
    assert Path("out/accuracy.png").read_bytes() == before["accuracy.png"]
    pages = [before["report.html"].decode(), Path("out/report.html").read_text("utf-8")]
    lines = [page.splitlines() for page in pages]
    changed = [line for line in lines[1] if line not in set(lines[0])]
    assert len(changed) <= 1
    assert all("Not recorded" in line for line in changed)


@pytest.mark.usefixtures("_small_page")
def test_a_report_of_an_unfinished_run_says_so(config, capsys):
    assert run_command(["run", str(config), "--out", "out"]) == 0
    assert "Test accuracy at the end" in capsys.readouterr().out
    lines = Path("out/results.jsonl").read_text("utf-8").splitlines(keepends=True)
    Path("out/results.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    assert run_command(["report", "out"]) == 0
    said = capsys.readouterr()
    assert "Test accuracy so far" in said.out
    assert re.search(r"^note: .* of \d+ rounds\.$", said.err, re.MULTILINE)


@pytest.mark.usefixtures("_small_page")
def test_a_figure_of_the_paper_is_drawn_again_from_results_alone(config, capsys):
    for panel in FIGURES["cifar10"]:
        assert run_command(["run", str(config), "--out", f"figure/{panel.name}"]) == 0
    capsys.readouterr()
    assert run_command(["report", "figure"]) == 0
    said = capsys.readouterr().out
    assert all(panel.title in said.replace("\n", " ") for panel in FIGURES["cifar10"])
    assert Path("figure/figure.png").read_bytes().startswith(b"\x89PNG")
    assert "Test accuracy at the end" in said
    Path("figure/cifar10-any/results.jsonl").write_bytes(b"")
    assert run_command(["report", "figure"]) == 0
    said = capsys.readouterr()
    assert "Test accuracy so far" in said.out
    assert said.err == "note: cifar10-any: The run holds no rounds yet.\n"


@pytest.mark.usefixtures("_small_page")
def test_several_folders_are_reported_and_nonsense_exits_2(config, capsys):
    for name in ("a", "b"):
        assert run_command(["run", str(config), "--out", name]) == 0
    capsys.readouterr()
    assert run_command(["report", "a", "b"]) == 0
    assert capsys.readouterr().out.count("report: ") == 2
    Path("empty").mkdir()
    for nonsense in ("empty", "nowhere", "tiny.toml"):
        message = refused(capsys, "report", nonsense)
        assert message.startswith("holdout: ")
        assert nonsense in message
    Path("a/results.jsonl").write_text("nonsense\n")
    assert "line 1: not a JSON object" in refused(capsys, "report", "a")


# --- Real processes ---


@pytest.fixture
def started(beside_us):
    """Start `holdout` in the working directory; whatever is left at the end is killed by its id."""
    processes = []

    def start(*arguments, stdin=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **variables):
        process = subprocess.Popen(
            [*HOLDOUT, *arguments],
            cwd=beside_us,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            text=True,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(path, process):
    """Until the file is there; an error if the process ends before."""
    deadline = time.monotonic() + DEADLINE
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def blocked(beside_us, started):
    """A process whose run stands still in the second seed, in the rule's fourth round."""
    (beside_us / "own_blocking.py").write_text(BLOCKING_RULE)
    config = write_config(
        beside_us,
        experiment={"rules": ["own_blocking:rule", "holdout"]},
        attack=CALM,
    )
    process = started("run", str(config), "--out", "its own folder")
    wait_for(beside_us / "reached", process)
    (beside_us / "go").touch()
    return process


@pytest.fixture
def whole(blocked, beside_us, capsys):
    assert run_command(["run", "tiny.toml", "--out", "whole"]) == 0
    capsys.readouterr()
    return beside_us / "whole"


@pytest.mark.slow
def test_ctrl_c_exits_130_and_says_how_to_go_on(blocked, whole, started, beside_us):
    blocked.send_signal(signal.SIGINT)
    output, errors = blocked.communicate(timeout=DEADLINE)
    assert (blocked.returncode, output) == (130, "")
    assert "Traceback" not in errors
    assert not CONTROL.search(errors)
    assert errors.endswith("holdout: stopped\n")
    (command,) = re.findall(r"^  (holdout run .*)$", errors, re.MULTILINE)
    kept = (beside_us / "its own folder" / "results.jsonl").read_text()
    # The rule had its three rounds in the first seed; the second seed was in its fourth call.
    assert kept.count('"rule": "own_blocking:rule"') == 3

    again = started(*shlex.split(command)[1:])
    output, errors = again.communicate(timeout=DEADLINE)
    assert again.returncode == 0, errors
    assert output.startswith("Test accuracy at the end (tiny)")
    assert output.endswith("report.html\n")
    assert not CONTROL.search(output)
    folder = beside_us / "its own folder"
    assert tiny.rounds(folder) == tiny.rounds(whole)
    assert (folder / "accuracy.png").read_bytes() == (whole / "accuracy.png").read_bytes()


@pytest.mark.slow
def test_a_killed_run_can_be_resumed_and_until_then_nobody_else_may(
    blocked, whole, beside_us, capsys
):
    folder = beside_us / "its own folder"
    before = tiny.contents(folder)
    again = ["run", "tiny.toml", "--out", "its own folder"]
    assert "is in use by another process" in refused(capsys, *again, "--resume")
    assert "is not empty" in refused(capsys, *again)
    assert tiny.contents(folder) == before
    blocked.kill()
    assert blocked.wait(DEADLINE) == -signal.SIGKILL
    assert run_command([*again, "--resume"]) == 0
    assert tiny.rounds(folder) == tiny.rounds(whole)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 200])
def test_a_terminal_gets_a_bar(config, started, columns):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    process = started("run", str(config), "--out", "out", stdin=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed.
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, shown
    assert b"Traceback" not in shown
    assert b"\x1b[" in shown
    assert b"100 %" in shown
    # However little room there is, the round and the time that is left are told.
    assert re.search(rb"round \d+", shown)
    assert re.search(rb"left: .*\d:\d\d:\d\d", shown)
    assert "report: out/report.html" in output
    assert not CONTROL.search(output)


@pytest.mark.slow
def test_starts_at_the_same_time_take_different_folders(config, started, beside_us):
    processes = [started("run", str(config), "--set", "experiment.rounds=1") for _ in range(3)]
    ended = [process.communicate(timeout=DEADLINE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ended
    told = sorted(output.splitlines()[-1] for output, _ in ended)
    assert told == [f"report: runs/{name}/report.html" for name in ("tiny-2", "tiny-3", "tiny")]
    folders = [beside_us / "runs" / name for name in ("tiny", "tiny-2", "tiny-3")]
    assert sorted((beside_us / "runs").iterdir()) == folders
    assert len({tiny.rounds(folder) for folder in folders}) == 1


FULL_DISK = """
mount -t tmpfs -o size="$1" tmpfs disk || exit 77
shift
"$@"
code=$?
cp -R disk/run kept
exit $code
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"), [("20k", r"results\.jsonl|state\.npz"), ("140k", r"accuracy\.png")]
)
def test_a_full_disk_is_told_in_one_line_and_resuming_goes_on(beside_us, size, name):
    """On a file system of that size, which only the processes of this test see."""
    config = write_config(beside_us, experiment={"seeds": [0], "rounds": 8, "evaluate_every": 1})
    (beside_us / "disk").mkdir()
    command = [*HOLDOUT, "run", str(config), "--out", "disk/run"]
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", FULL_DISK, "sh", size, *command],
        cwd=beside_us,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    if done.returncode in (1, 77) and "holdout" not in done.stderr:
        pytest.skip("no file system may be mounted here")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    *_, hint, again, last = done.stderr.splitlines()
    assert hint == "Everything done so far is kept. Continue with:"
    assert again == "  holdout run --out disk/run --resume"
    assert re.match(rf"holdout: disk/run/\S*({name}): cannot be written \(No space left", last)
    kept = beside_us / "kept"
    before = tiny.rounds(kept)
    assert run_command(["run", "--out", str(kept), "--resume"]) == 0
    assert run_command(["run", str(config), "--out", "whole"]) == 0
    assert tiny.rounds(kept) == tiny.rounds(beside_us / "whole")
    assert tiny.rounds(kept).startswith(before[: before.rindex("\n") + 1])
    assert not list(kept.rglob("*.partial"))


# Sends Ctrl-C again and again, from the moment on at which the process does what STORM names.
STORM = """
import os, signal, sys, threading

def storm():
    for _ in range(60):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.0005)

name, _, number = os.environ["STORM"].partition(" ")
left = int(number)

def begin(event):
    global left
    if event == name:
        left -= 1
        if left == 0:
            threading.Thread(target=storm).start()

def audit(event, arguments):
    if event == "import":
        begin(f"import:{arguments[0]}")
    if event == "os.rename":
        begin("rename:" + os.path.basename(arguments[1]))

sys.addaudithook(audit)

def rule(updates, *, f):
    begin("rule")
    return updates.mean(dim=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        "import:holdout.commands 1",
        "import:torch 1",
        "rename:results.jsonl 1",
        "rule 1",  # When it is tried, twice, before the run begins.
        "rule 4",
        "rename:state.npz 2",
        "rename:accuracy.png 1",
    ],
)
def test_many_a_ctrl_c_at_once_ends_without_a_traceback(
    moment, beside_us, started, capsys, monkeypatch
):
    (beside_us / "own_storm.py").write_text(STORM)
    config = write_config(
        beside_us, experiment={"rules": ["own_storm:rule"], "seeds": [0]}, attack=CALM
    )
    # Python imports `sitecustomize` at its start: before anything of ours.
    (beside_us / "sitecustomize.py").write_text("import own_storm\n")
    process = started(
        "run", str(config), "--out", "out", STORM=moment, PYTHONPATH=f"{beside_us}:{SOURCE}"
    )
    output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (130, ""), errors
    assert "Traceback" not in errors
    assert errors.endswith("holdout: stopped\n")
    begun = (beside_us / "out" / "config.toml").exists()
    assert begun == ("Continue with:" in errors)
    assert begun == (moment.startswith(("rule 4", "rename:state", "rename:acc")))
    monkeypatch.setenv("STORM", "never 1")
    assert run_command(["run", str(config), "--out", "out", *["--resume"] * begun]) == 0
    capsys.readouterr()
    assert (beside_us / "out" / "results.jsonl").read_text().count("\n") == 6


def test_a_reader_that_goes_away_is_no_crash(started):
    process = started(*plan(), stdout=subprocess.PIPE)
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert errors == ""
