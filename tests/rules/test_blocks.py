"""OpenBLAS's own threads, which spin, beside ours."""

from collections.abc import Iterator

import pytest
from threadpoolctl import ThreadpoolController

from holdout.rules.blocks import map_runs

OPENBLAS = ThreadpoolController().select(internal_api="openblas")


def blas_threads() -> int:
    return max(library["num_threads"] for library in OPENBLAS.info())


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    if not OPENBLAS.info():
        pytest.skip("numpy uses another library here")
    with OPENBLAS.limit(limits=2):
        yield


@pytest.mark.parametrize("d", [1, 1000])
def test_blas_has_one_thread_while_rules_compute_and_its_own_number_afterwards(d):
    assert set(map_runs(lambda _: blas_threads(), d, width=1)) == {1}
    assert blas_threads() == 2


def test_blas_gets_its_number_back_though_the_work_fails():
    with pytest.raises(ZeroDivisionError):
        map_runs(lambda _: 1 // 0, 10, width=1)
    assert blas_threads() == 2
