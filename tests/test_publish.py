"""What is published: wheel and sdist, the site, and one version everywhere."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import build_site as site
import pytest
import yaml
from packaging.specifiers import SpecifierSet

import holdout

ROOT = Path(__file__).resolve().parent.parent


def test_version_is_the_same_everywhere():
    version = re.escape(holdout.__version__)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == holdout.__version__
    released = re.search(
        r"^## \[(\d[^\]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert released is not None
    assert released[1] == holdout.__version__
    assert released[2] == str(citation["date-released"])
    assert re.search(rf"holdout-sgd=={version}\b", (ROOT / "constraints.txt").read_text("utf-8"))


def test_every_pinned_version_runs_on_the_oldest_python():
    pins = set((ROOT / "constraints.txt").read_text("utf-8").lower().split())
    pinned = [d for d in distributions() if f"{d.metadata['Name']}=={d.version}".lower() in pins]
    assert len(pinned) > len(pins) // 4
    needs = {d.metadata["Name"]: d.metadata.get("Requires-Python") or "" for d in pinned}
    # Debian 12 has Python 3.11.2, and `make run` takes it.
    assert [f"{n} {need}" for n, need in needs.items() if "3.11.0" not in SpecifierSet(need)] == []


def test_citation_names_the_paper_of_the_readme():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    paper = citation["preferred-citation"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(author["family-names"] in readme for author in paper["authors"])
    assert paper["url"] in readme
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["license"] == project["license"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and an sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_wheel_and_sdist_hold_what_is_needed_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "holdout").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == sources
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed_sources:
        inside = [name.partition("/")[2] for name in packed_sources.getnames()]
    assert not [name for name in inside if name.startswith(("runs/", "build/", ".venv", "dist/"))]
    assert {"README.md", "LICENSE", "pyproject.toml"} <= set(inside)


@pytest.mark.soak
def test_the_wheel_runs_the_demo_and_a_network_in_a_fresh_environment(built, tmp_path):
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        ROOT / "constraints.txt",
        f"{wheel}[node]",
    ]
    subprocess.run(install, check=True, cwd=tmp_path)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for arguments in (
        ["run", "--set", "experiment.rounds=5", "--out", "demo"],
        ["localnet", "--nodes", "4", "--rounds", "3"],
    ):
        command = [tmp_path / "fresh" / "bin" / "holdout", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "demo" / "report.html").is_file()


@pytest.mark.slow
def test_the_site_has_no_broken_link_and_loads_nothing_from_elsewhere(tmp_path):
    assert site.main(tmp_path / "site") == 0
    assert (tmp_path / "site" / "search.json").stat().st_size > 100_000
    assert "holdout.run" in (tmp_path / "site" / "api.html").read_text("utf-8")


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="#gone">2</a><a href="b.html#x">3</a>'
        '<a href="c.html">4</a><script src="https://example.org/x.js"></script>'
        '<a href="https://example.org/">5</a>'
    )
    (tmp_path / "b.html").write_text('<p id="y">')
    assert list(site.broken_links(tmp_path)) == [
        "a.html: #gone names a place that is not there",
        "a.html: b.html#x names a place that is not there",
        "a.html: c.html is not there",
        "a.html: loads https://example.org/x.js from elsewhere",
    ]


def test_links_that_leave_the_pages_lead_to_their_copies_or_nowhere():
    page = "see [changes](../CHANGELOG.md), [rules](rules.md#krum), [code](../src/holdout/seeds.py)"
    assert site.with_site_links(page, ROOT / "docs" / "paper.md", "paper.md") == (
        "see [changes](changelog.md), [rules](rules.md#krum), code"
    )
    deeper = "[the vote](../rules.md) and [web](https://example.org/a)"
    assert site.with_site_links(deeper, ROOT / "docs/results/vote.md", "results/vote.md") == (
        "[the vote](../rules.md) and [web](https://example.org/a)"
    )
