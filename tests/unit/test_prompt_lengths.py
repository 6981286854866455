"""Prompts over the limit: counted as the runner renders them, once, and reported."""

from __future__ import annotations

import time

import numpy as np
import pytest

from posttrain.data import lengths
from posttrain.data.chat import Renderer
from posttrain.data.lengths import PromptLimit, prompt_lengths
from posttrain.data.sources import Rows
from posttrain.errors import ConfigError, DataError
from posttrain.testing.toy import CHATML, byte_tokenizer
from posttrain.types.message import Message

RNG = np.random.default_rng(0)


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Calls of the counter, with a toy tokenizer and a cache of its own."""
    calls = []

    def counting(renderer, prompts):
        calls.append(len(prompts))
        return prompt_lengths(renderer, prompts)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lengths, "load_tokenizer", lambda path: byte_tokenizer(name=path))
    monkeypatch.setattr(lengths, "prompt_lengths", counting)
    return calls


def source(*sizes: int) -> Rows:
    return Rows(tuple({"prompt": "x" * n, "answer": n} for n in sizes), shuffle=None)


def limit(*sizes: int, **options) -> PromptLimit:
    return PromptLimit(source=source(*sizes), max_tokens=4, model="toy", shuffle=None, **options)


def test_lengths_are_those_the_runner_sees():
    tokenizer = byte_tokenizer(template="{{ bos_token }}" + CHATML, bos="<|endoftext|>")
    renderer = Renderer(tokenizer)
    prompts = ["abc", "<|endoftext|>abc", (Message("user", "2+2"),), "é"]
    found = prompt_lengths(renderer, prompts).tolist()
    assert found == [
        len(renderer.prompt(p)) if isinstance(p, tuple) else len(renderer.raw(p)) for p in prompts
    ]
    assert found[0] == found[1] == 4


def test_longer_prompts_are_left_out_with_a_count(counted, caplog):
    kept = limit(3, 5, 4, 9)
    assert [t.gold for t in kept.draw({}, 3, RNG)] == [3, 4, 3]
    assert (kept.size(), kept.dropped) == (2, 2)
    assert "2 of 4 prompts are longer than 4 tokens (row 1 has 5)" in caplog.text
    assert kept.verifiers == {}


def test_longer_prompts_are_refused_if_asked(counted):
    with pytest.raises(DataError, match=r"1 of 2 prompts are longer than 4 tokens \(row 1 has 6\)"):
        limit(3, 6, long="refuse").size()
    with pytest.raises(DataError, match="2 of 2 prompts"):
        limit(5, 6).size()
    with pytest.raises(ConfigError, match="max_tokens"):
        PromptLimit(source=source(3), max_tokens=0, model="toy")


def test_a_second_start_does_not_count_again(counted, tmp_path):
    assert limit(3, 5).size() == 1
    assert limit(3, 5).size() == 1
    assert counted == [2]
    assert limit(3, 5, 4).size() == 2
    assert counted == [2, 3]
    for file in (tmp_path / "posttrain" / "lengths").iterdir():
        file.write_bytes(b"damaged")
    assert limit(3, 5).size() == 1
    assert counted == [2, 3, 2]


def test_a_cache_that_cannot_be_written_is_no_bar(counted, tmp_path, caplog):
    (tmp_path / "posttrain").write_text("a file in the way")
    assert limit(3, 5).size() == 1
    assert "could not be kept" in caplog.text


def test_many_prompts_take_seconds(counted):
    rows = Rows(tuple({"prompt": f"{i:0200d}"} for i in range(2_000)), chat=True)
    limited = PromptLimit(source=rows, max_tokens=300, model="toy")
    start = time.monotonic()
    assert limited.size() == 2_000
    assert time.monotonic() - start < 30.0
