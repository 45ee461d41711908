"""Folders that are numbered: each is given once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdout.errors import RunFolderError
from holdout.folder_names import claim_path, last_path


def test_claimed_and_last_paths_count_up(tmp_path):
    assert last_path(tmp_path, "run") == tmp_path / "run"
    assert claim_path(tmp_path / "runs", "run") == tmp_path / "runs" / "run"
    for name in ("run", "run-2", "run-4"):
        (tmp_path / name).mkdir()
    assert last_path(tmp_path, "run") == tmp_path / "run-2"
    assert claim_path(tmp_path, "run") == tmp_path / "run-3"
    assert claim_path(tmp_path, "run") == tmp_path / "run-5"
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="no folder can be made in it"):
        claim_path(tmp_path / "file", "run")


def test_a_name_is_given_to_one_of_many_that_ask_at_once(tmp_path):
    together = threading.Barrier(8)

    def ask(number):
        together.wait()
        return claim_path(tmp_path / f"runs-{number // 8}", "run").relative_to(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(ask, range(8 * 40)))
    assert len(set(given)) == len(given)
    assert {path.name for path in given} == {"run", *(f"run-{n}" for n in range(2, 9))}
