"""Text ends by token: whole characters, special tokens of no length, spaces of their own rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posttrain.data.detokenise import Detokeniser
from posttrain.testing.toy import byte_tokenizer, word_tokenizer

BYTES = byte_tokenizer(merges=[("h", "e"), ("he", "l")])


def ends(tokenizer, ids) -> tuple[str, list[int]]:
    text, found = Detokeniser(tokenizer).with_ends(ids)
    assert found.dtype == np.int32
    return text, found.tolist()


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_plain_tokens_and_a_marker_of_no_length():
    assert ends(BYTES, encode(BYTES, "hello<|im_end|>")) == ("hello", [3, 4, 5, 5])


def test_a_part_of_a_character_ends_with_the_character():
    # e with acute accent is two bytes, the emoji four
    ids = encode(BYTES, "aé😀b")
    assert len(ids) == 8
    assert ends(BYTES, ids) == ("aé😀b", [1, 2, 2, 3, 3, 3, 3, 4])


def test_a_character_cut_at_the_end_counts_as_one():
    text, found = ends(BYTES, encode(BYTES, "aé")[:2])
    assert len(text) == 2
    assert found == [1, 2]


def test_nothing_decodes_to_nothing():
    assert ends(BYTES, []) == ("", [])


def test_words_joined_by_spaces():
    tokenizer = word_tokenizer({"we": 0, "add": 1, "them": 2}, template=None)
    assert ends(tokenizer, [0, 1, 2]) == ("we add them", [2, 6, 11])


@pytest.fixture(scope="module")
def metaspace():
    vocabulary = {"\u2581we": 0, "\u2581add": 1, "s": 2, "\u2581": 3, "<0xC3>": 4, "<0xA9>": 5}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def test_a_leading_space_that_decoding_strips(metaspace):
    # alone each word loses its space, together only the first
    assert ends(metaspace, [0, 1, 2]) == ("we adds", [2, 6, 7])


def test_bytes_of_a_character_between_words(metaspace):
    assert ends(metaspace, [0, 4, 5, 1]) == ("weé add", [2, 3, 3, 7])


def test_windowed_ends_agree_with_decoding_every_prefix(metaspace):
    ids = [0, 1, 2, 1, 3, 0, 2, 2, 1] * 3
    text, found = Detokeniser(metaspace).with_ends(ids)
    prefixes = [len(metaspace.decode(ids[: i + 1])) for i in range(len(ids))]
    assert found.tolist() == prefixes
    assert text == metaspace.decode(ids)


@given(st.text(max_size=12))
def test_ends_cut_a_text_exactly(text):
    assume("<|" not in text)  # markers have no text
    ids = encode(BYTES, text)
    decoded, found = Detokeniser(BYTES).with_ends(ids)
    assert decoded == text
    assert np.all(np.diff(found) >= 0)
    for char in {0, *found.tolist()}:
        tokens = int(np.searchsorted(found, char, side="right"))
        assert BYTES.decode(ids[:tokens]) == text[:char]


def test_show_marks_trained_runs():
    ids = encode(BYTES, "a\nhel")
    assert Detokeniser(BYTES).show(ids, [False, True, True]) == "a⟦\\nhel⟧"
