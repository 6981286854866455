"""Small groups and models for tests of batches, learners and the loop."""

from __future__ import annotations

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from posttrain.types.episode import Column, Episode, Group, Origin, Segment, Span
from posttrain.types.message import Task


def segment(ids, *, context=(), sampled=True, advantage=None, **fields) -> Segment:
    """A segment; a sampled one trains and has the log-prob -0.5 a token."""
    ids = np.asarray(ids, np.int32)
    columns = {}
    if advantage is not None:
        columns["advantages"] = Column(np.full(len(ids), advantage, np.float32))
    defaults = {
        "action_mask": np.full(len(ids), sampled),
        "rollout_logprobs": np.full(len(ids), -0.5 if sampled else np.nan, np.float32),
        "version": np.full(len(ids), 0 if sampled else -1, np.int32),
        "trains": sampled,
        "origin": Origin.SAMPLED if sampled else Origin.OBSERVED,
        "model": "policy" if sampled else "",
        "columns": columns,
    }
    return Segment(ids=ids, context=tuple(Span(*c) for c in context), **{**defaults, **fields})


def group(segments, episodes, *, draw=0, **fields) -> Group:
    """A group whose episodes are tuples of segment numbers."""
    made = tuple(Episode(episode_id=f"e{i}", segments=tuple(e)) for i, e in enumerate(episodes))
    task = Task(id=f"t{draw}", prompt="?")
    return Group(key=(0, 0, draw), task=task, segments=tuple(segments), episodes=made, **fields)


def tiny_llama(*, seed=0, dtype=torch.float32, vocab=17, tied=False) -> LlamaForCausalLM:
    """About 10,000 parameters."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).to(dtype)


def tiny_gpt2(*, seed=0, dtype=torch.float32, vocab=17) -> GPT2LMHeadModel:
    """As small; it computes in float64 throughout, where Llama's norms and rotations do not."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab,
        n_positions=128,
        n_embd=24,
        n_layer=2,
        n_head=3,
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config).to(dtype)


def random_groups(num=3, *, size=4, vocab=17, seed=0) -> list[Group]:
    """Single-turn groups with ragged prompts and completions and random advantages."""
    rng = np.random.default_rng(seed)
    made = []
    for draw in range(num):
        prompt = segment(rng.integers(3, vocab, rng.integers(2, 7)), sampled=False)
        segments, episodes = [prompt], []
        for member in range(size):
            ids = rng.integers(3, vocab, rng.integers(1, 9))
            segments.append(
                segment(ids, context=[(0, prompt.num_tokens)], advantage=rng.normal(), turn=1)
            )
            episodes.append((0, member + 1))
        made.append(group(segments, episodes, draw=draw))
    return made
