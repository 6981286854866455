"""The tiny reasoner: seeded weights, a lossless tokenizer, and a folder that loads as it is."""

from __future__ import annotations

import pytest
import torch
from jinja2.exceptions import TemplateError as JinjaError
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from posttrain.data.chains import LONG, max_solution_chars
from posttrain.data.tiny_model import (
    MAX_TOKENS,
    build_tiny_reasoner,
    build_tiny_tokenizer,
    save_tiny_reasoner,
)

CHAT = [
    {"role": "system", "content": "modulo 7"},
    {"role": "user", "content": "3-5+6"},
    {"role": "assistant", "content": "3-5=5,5+6=4"},
    {"role": "user", "content": "1+1"},
]


@pytest.fixture(scope="module")
def reasoner():
    return build_tiny_reasoner(0)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tiny_tokenizer()


def test_weights_depend_on_the_seed_alone(reasoner):
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    again, _ = build_tiny_reasoner(0)
    other, _ = build_tiny_reasoner(1)
    assert torch.equal(before, torch.random.get_rng_state())
    first, second = reasoner[0].state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other.state_dict()["lm_head.weight"])


def test_size_and_spread(reasoner):
    model, tokenizer = reasoner
    attention, feed_forward, norms = 4 * 64 * 64, 3 * 64 * 160, 2 * 64
    expected = 2 * 263 * 64 + 2 * (attention + feed_forward + norms) + 64
    assert sum(p.numel() for p in model.parameters()) == expected == 128_192
    assert model.config.vocab_size == len(tokenizer) == 263
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert abs(model.lm_head.weight.std().item() - 0.06) < 0.002
    assert not model.training


def test_base_of_the_rotary_positions(reasoner):
    turns = reasoner[0].model.rotary_emb.inv_freq  # radians a position, for 16 numbers a head
    assert torch.allclose(turns, torch.tensor([100.0 ** (-i / 8) for i in range(8)]))


@pytest.mark.parametrize("text", ["3-5=5,5+6=4", "", " a  b\n", "é 漢字 🙂", "\x00\t\r\n"])
def test_any_text_survives(tokenizer, text):
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_markers_are_distinct_single_tokens(tokenizer):
    ids = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]
    roles = tokenizer.encode("<|system|><|user|><|assistant|><|tool|>")
    assert ids + roles == list(range(7))
    assert tokenizer.decode([1, *roles, 2], skip_special_tokens=True) == ""


def test_chat_template_by_hand(tokenizer):
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|begin|><|system|>modulo 7<|end|><|user|>3-5+6<|end|>"
        "<|assistant|>3-5=5,5+6=4<|end|><|user|>1+1<|end|><|assistant|>"
    )


def test_the_template_marks_what_the_assistant_said_and_its_end(tokenizer):
    out = tokenizer.apply_chat_template(
        CHAT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    marked = [
        i for i, said in zip(out["input_ids"], out["assistant_masks"], strict=True) if said == 1
    ]
    assert tokenizer.decode(marked) == "3-5=5,5+6=4<|end|>"


def test_the_template_refuses_what_it_would_drop(tokenizer):
    with pytest.raises(JinjaError, match="got critic"):
        tokenizer.apply_chat_template([{"role": "critic", "content": "no"}], tokenize=False)
    tool = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
    with pytest.raises(JinjaError, match="no place for tools"):
        tokenizer.apply_chat_template(CHAT, tools=[tool], tokenize=False)


def test_the_folder_loads_as_it_is(tmp_path):
    folder = save_tiny_reasoner(tmp_path / "tiny", seed=4)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    built, built_tokenizer = build_tiny_reasoner(4)
    assert isinstance(model, LlamaForCausalLM)
    ids = torch.tensor([[1, 4, 25, 19, 27, 2, 5]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, built(ids).logits)
    ends = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert ends == (0, 1, 2)
    assert (model.generation_config.pad_token_id, model.generation_config.eos_token_id) == (0, 2)
    rendered = [t.apply_chat_template(CHAT, tokenize=False) for t in (tokenizer, built_tokenizer)]
    assert rendered[0] == rendered[1]
    assert tokenizer.encode("é=4") == built_tokenizer.encode("é=4")


def test_the_longest_chains_fit():
    assert 3 * max_solution_chars(LONG) < MAX_TOKENS
