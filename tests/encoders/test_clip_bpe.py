import pickle

import pytest

from antipodes.encoders import byte_pairs
from antipodes.encoders.packages import find_packaged

pytestmark = pytest.mark.skipif(
    find_packaged(byte_pairs.PACKAGES, byte_pairs.FILE) is None, reason="the package with CLIP's byte pairs is absent"
)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_pairs.ClipTokenizer(byte_pairs.read_merges())


def test_the_vocabulary_has_clips_size(tokenizer):
    assert len(tokenizer._numbers) + 2 == byte_pairs.SIZE == 49408
    assert (byte_pairs.START, byte_pairs.END) == (49406, 49407)


def test_known_tokens(tokenizer):
    for text, tokens in [
        # from OpenAI's published tokenizer
        ("a photo of a cat", [320, 1125, 539, 320, 2368]),
        ("Hello   World!", [3306, 1002, 256]),
        ("a diagram", [320, 22697]),
        ("a dog", [320, 1929]),
        ("", []),
    ]:
        assert tokenizer.encode([text]) == [[49406, *tokens, 49407]]


def test_texts_are_cleaned_before_they_are_cut(tokenizer):
    messy = "It\u2019s  &amp;amp; \ufb01ne\n\uff12 CAFE\u0301"
    assert byte_pairs.clean_text(messy) == "it's & fine 2 caf\u00e9"
    assert tokenizer.encode([messy]) == tokenizer.encode(["it's & fine 2 caf\u00e9"])
    assert list(byte_pairs.split_words("don't!!'s 42nd \u00bd x\u0301")) == [
        "don",
        "'t",
        "!!'",
        "s",
        "4",
        "2",
        "nd",
        "\u00bd",
        "x",
        "\u0301",
    ]


def test_every_byte_can_be_written_and_long_texts_are_cut(tokenizer):
    (row,) = tokenizer.encode(["\U0001f642 \u65e5\u672c"])
    assert row[0] == 49406
    assert all(0 <= token < 49406 for token in row[1:-1])
    (cut,) = tokenizer.encode(["word " * 500])
    assert len(cut) == 77
    assert cut[-1] == 49407


def test_a_copy_gives_the_same_tokens(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode(["two dogs play"]) == tokenizer.encode(["two dogs play"])
