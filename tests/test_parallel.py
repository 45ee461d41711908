"""Pieces of work on several threads: all done, errors kept, results the same for any number.

And OpenBLAS's own threads, which spin: none beside ours.
"""

import threading
from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import ThreadpoolController

from holdout.learning import models, vector
from holdout.learning.scoring import sample_losses
from holdout.learning.training import gradients
from holdout.parallel import RUNS, even_width, map_runs, run_all

OPENBLAS = ThreadpoolController().select(internal_api="openblas")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_piece_is_done_once(threads):
    torch.set_num_threads(threads)
    done = []
    run_all(done.append, range(20))
    assert sorted(done) == list(range(20))


def test_each_piece_runs_on_one_thread_and_the_caller_keeps_its_own():
    torch.set_num_threads(2)
    seen = []
    run_all(lambda _: seen.append((torch.get_num_threads(), threading.get_ident())), range(6))
    assert {count for count, _ in seen} == {1}
    assert threading.get_ident() not in {who for _, who in seen}
    assert torch.get_num_threads() == 2


def test_a_piece_that_asks_for_more_threads_leaves_the_next_one_with_one():
    torch.set_num_threads(2)
    run_all(lambda _: torch.set_num_threads(2), range(6))
    assert set(run_all(lambda _: torch.get_num_threads(), range(6))) == {1}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_the_order_of_the_pieces(threads):
    torch.set_num_threads(threads)
    assert run_all(lambda piece: piece * piece, range(20)) == [i * i for i in range(20)]
    starts = [start for run in map_runs(list, 100, width=3) for start in run]
    assert starts == list(range(0, 100, 3))


@pytest.mark.parametrize("d", [1, 100, 101, 1_000, 79_510, 1_000_003])
def test_blocks_of_even_width_make_runs_of_equal_length(d):
    width = even_width(d, 1000)
    assert 1 <= width <= 1000
    if d >= 10_000:
        lengths = [len(run) for run in map_runs(lambda starts: starts, d, width)]
        assert len(lengths) == RUNS
        assert max(lengths) - min(lengths) <= 1


def test_an_error_is_raised_once_no_piece_is_running():
    torch.set_num_threads(2)
    factor = torch.randn(600, 600)
    ended = []

    def work(piece):
        if piece == 0:
            raise ValueError("piece 0")
        assert torch.linalg.matrix_norm(factor @ factor) > 0
        ended.append(piece)

    with pytest.raises(ValueError, match="piece 0"):
        run_all(work, range(8))
    assert sorted(ended) == list(range(1, 8))


def test_losses_of_convolutions_are_the_same_to_the_bit_for_any_number_of_threads():
    shape = (3, 32, 32)
    model = models.build(models.MODELS["lenet5"], shape, 10, seed=0)
    generator = torch.Generator().manual_seed(0)
    weights = vector.flatten(model)
    candidates = weights + 0.01 * torch.randn(5, len(weights), generator=generator)
    x = torch.randn(3001, *shape, generator=generator)
    y = torch.randint(0, 10, (3001,), generator=generator)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(sample_losses(model, candidates, x, y))
    assert all(torch.equal(losses, found[0]) for losses in found)


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 28, 28)), ("lenet5", (3, 32, 32))])
def test_gradients_are_the_same_to_the_bit_for_any_number_of_threads(name, shape):
    model = models.build(models.MODELS[name], shape, 10, seed=0)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(size, *shape, generator=generator),
            torch.randint(0, 10, (size,), generator=generator),
        )
        for size in [83, 40, 1, 12] * 5
    ]
    found = []
    for threads in (1, 2, 3, 20):
        torch.set_num_threads(threads)
        found.append(gradients(model, vector.flatten(model), batches))
    assert all(torch.equal(rows, found[0]) for rows in found)


def blas_threads() -> int:
    return max(library["num_threads"] for library in OPENBLAS.info())


@pytest.fixture
def _two_blas_threads() -> Iterator[None]:
    if not OPENBLAS.info():
        pytest.skip("numpy uses another library here")
    with OPENBLAS.limit(limits=2):
        yield


@pytest.mark.usefixtures("_two_blas_threads")
@pytest.mark.parametrize("d", [1, 1000])
def test_blas_has_one_thread_while_rules_compute_and_its_own_number_afterwards(d):
    assert set(map_runs(lambda _: blas_threads(), d, width=1)) == {1}
    assert blas_threads() == 2


@pytest.mark.usefixtures("_two_blas_threads")
def test_blas_gets_its_number_back_though_the_work_fails():
    with pytest.raises(ZeroDivisionError):
        map_runs(lambda _: 1 // 0, 10, width=1)
    assert blas_threads() == 2
