"""Lengths, cosines and mixtures of vectors: the same for any number of threads."""

import numpy as np
import pytest
import torch

from holdout.cosines import Vectors, combine, cosines


def test_cosines_do_not_depend_on_the_number_of_threads():
    generator = torch.Generator().manual_seed(0)
    vectors = Vectors.of([torch.randn(60_000, generator=generator) for _ in range(7)])
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(cosines(vectors))
    finally:
        torch.set_num_threads(before)
    assert all((table == found[0]).all() for table in found)
    plain = torch.stack(list(vectors.rows)).double()
    plain = plain / plain.norm(dim=1, keepdim=True)
    assert found[0] == pytest.approx((plain @ plain.T).numpy(), abs=1e-6)


def test_a_combination_leaves_what_it_is_made_of_alone():
    rows = [torch.ones(3), 2 * torch.ones(3)]
    assert combine(rows, np.array([0.5, 0.25])).tolist() == [1.0, 1.0, 1.0]
    assert rows[0].tolist() == [1.0, 1.0, 1.0]
