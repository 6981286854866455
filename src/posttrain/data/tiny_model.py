"""The tiny reasoner: a Llama-style model of about 0.13 million weights, built in code.

It is an ordinary ``transformers`` model and tokenizer, so everything that takes a Hugging Face
folder takes it too. Small enough to be warm-started and trained with rewards on two CPU cores,
large enough (two layers, so that one position can look up what another one found) to do one step
of ``posttrain.data.chains`` at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
MARKERS = (PAD, BEGIN, END, *(f"<|{role}|>" for role in ROLES))

MAX_TOKENS = 1024
"""Longest sequence, prompt and completion together."""

CHAT_TEMPLATE = """\
{%- if tools %}{{ raise_exception('this template has no place for tools') }}{% endif -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role not in ('system', 'user', 'assistant', 'tool') -%}
{{- raise_exception('the roles are system, user, assistant and tool, got ' ~ message.role) -}}
{%- endif -%}
{{- '<|' ~ message.role ~ '|>' -}}
{%- if message.role == 'assistant' -%}
{%- generation -%}{{- message.content ~ eos_token -}}{%- endgeneration -%}
{%- else -%}
{{- message.content ~ eos_token -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def build_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that any text survives the round trip, and one a marker.

    Ids 0-6 are the markers (padding, begin, end and one for each role), the bytes follow.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = [*MARKERS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in MARKERS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[f"<|{role}|>" for role in ROLES],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
        name_or_path="tiny",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_tiny_reasoner(seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The untrained model, in float32, and its tokenizer.

    The weights depend on ``seed`` alone; torch's own generator is left as it was. Two settings
    depart from Llama's. The spread of the weights, 0.06, is three times the usual one, for the
    width is small. The base of the rotary positions is 100, not 10,000: with 16 numbers a head most
    frequencies of the usual base hardly turn within thirty tokens, and some seeds do not learn
    where in the question a step stands.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        initializer_range=0.06,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        pad_token_id=MARKERS.index(PAD),
        bos_token_id=MARKERS.index(BEGIN),
        eos_token_id=MARKERS.index(END),
        tie_word_embeddings=False,
        use_cache=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.float().eval(), tokenizer


def save_tiny_reasoner(folder: str | Path, seed: int) -> Path:
    """Write the untrained model and its tokenizer as a Hugging Face folder; returns the folder."""
    place = Path(folder)
    model, tokenizer = build_tiny_reasoner(seed)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place
