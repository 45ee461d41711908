import pytest
from tests.fuzz import fuzz_decode

from holdout.agreement.headers import Header


def test_the_fuzzers_examples_are_valid_and_of_every_kind():
    pairs = fuzz_decode.decoders()
    examples = fuzz_decode.examples()
    for data in examples:
        decode, _ = pairs[data[0]]
        decode(data[1:])
        fuzz_decode.examine(data, pairs)
        fuzz_decode.examine(data[:-1], pairs)
    assert [data[1] for data in examples if data[0] == 0] == list(range(1, 13))
    assert [data[0] for data in examples][-2:] == [1, 2]


def test_a_second_encoding_would_be_a_finding():
    (header,) = (data for data in fuzz_decode.examples() if data[0] == 2)
    pairs = fuzz_decode.decoders()
    careless = [(lambda data: pairs[2][0](data[:-1]), Header.encode)]
    with pytest.raises(AssertionError, match="second encoding"):
        fuzz_decode.examine(header + b"x", careless)
