"""`content_ids`: equal numbers for equal texts."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antipodes import content_ids
from antipodes.identity import identities


@given(st.lists(st.text(), max_size=20))
def test_identities_are_equal_exactly_where_the_texts_are(texts: list[str]) -> None:
    ids = content_ids(texts)
    assert ids.dtype == torch.int64
    assert ids.shape == (len(texts),)
    same = torch.tensor([[a == b for b in texts] for a in texts], dtype=torch.bool).view(len(texts), len(texts))
    assert torch.equal(ids[:, None] == ids, same)
    assert bool((ids >= 0).all())


def test_white_space_and_case_count() -> None:
    texts = ["cat", "Cat", " cat", "cat\n", "ca t", "cät", "ca\u0308t", ""]
    assert len(content_ids(texts).unique()) == len(texts)


def test_the_hash_is_the_first_63_bits_of_blake2b() -> None:
    digest = int.from_bytes(blake2b("grüße".encode(), digest_size=8).digest(), "big")
    assert content_ids(["grüße"]).item() == digest >> 1
    assert content_ids(["cats"]).item() == 109308053446150797  # must never change: identities are stored


def test_any_iterable_of_strings_and_lone_surrogates() -> None:
    wanted = content_ids(["a", "b"])
    assert torch.equal(content_ids(np.array(["a", "b"])), wanted)
    assert torch.equal(content_ids(iter(("a", "b"))), wanted)
    assert content_ids(["\ud800"]).shape == (1,)
    assert content_ids([]).shape == (0,)


def test_a_single_text_is_refused() -> None:
    for wrong in ["cats", b"cats", 3, None]:
        with pytest.raises(TypeError, match="list of texts"):
            content_ids(wrong)  # type: ignore[arg-type]


def test_what_is_not_a_text_is_refused_with_its_place() -> None:
    for wrong in [3, None, b"cats", float("nan"), ["cats"]]:
        with pytest.raises(TypeError, match="position 1"):
            content_ids(["cats", wrong])  # type: ignore[list-item]


def test_whole_numbers_stay_and_texts_are_hashed() -> None:
    for numbers in ([3, 2**62, 0], np.array([3, 2**62, 0]), torch.tensor([3, 2**62, 0]), (np.int64(3), 2**62, 0)):
        assert identities(numbers).tolist() == [3, 2**62, 0]
    assert identities(np.array([3.0, 1.0])).tolist() == [3, 1]
    assert identities([]).shape == (0,)
    for texts in (["7", "a"], np.array(["7", "a"]), np.array(["7", "a"], dtype=object)):
        assert torch.equal(identities(texts), content_ids(["7", "a"]))


def test_what_is_no_identity_is_refused_by_name() -> None:
    for wrong in [
        [-1, 2],
        [0.5],
        [1, "a"],
        [None],
        "abc",
        3,
        [True],
        [[1, 2]],
        [2**63],
        [float("nan")],
        np.array([2.0**60]),
        [b"a"],
    ]:
        with pytest.raises(ValueError, match="users must be"):
            identities(wrong, "users")
