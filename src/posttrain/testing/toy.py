"""Small tokenizers and chat templates built in code, for tests and cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CHATML_MARKERS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

LLAMA_STYLE = (
    "{{ bos_token }}{% for m in messages %}<|h|>{{ m.role }}<|/h|>\n\n{{ m.content }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
)

LLAMA_STYLE_MARKERS = ("<|bos|>", "<|h|>", "<|/h|>", "<|eot|>", "<|end_of_text|>")


def byte_tokenizer(
    *,
    template: str | None = CHATML,
    markers: Sequence[str] = CHATML_MARKERS,
    eos: str | None = "<|im_end|>",
    pad: str | None = "<|endoftext|>",
    bos: str | None = None,
    merges: Sequence[tuple[str, str]] = (),
    name: str = "toy-bytes",
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: one token a byte, the merges given, and markers.

    Args:
        template: Its chat template.
        markers: Special tokens; ids follow the 256 bytes and the merges.
        eos: End token.
        pad: Padding token.
        bos: Begin token; where given it is also put before plain texts.
        merges: Pairs of byte-level symbols to join, in order.
        name: ``name_or_path``, as error messages show it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _wrap(backend, template, markers, eos=eos, pad=pad, bos=bos, name=name)


def word_tokenizer(
    vocabulary: Mapping[str, int],
    *,
    template: str | None,
    markers: Sequence[str] = (),
    eos: str | None = None,
    pad: str | None = None,
    name: str = "toy-words",
) -> PreTrainedTokenizerFast:
    """Whole words with the ids given, separated by spaces; ``markers`` among them are special."""
    backend = Tokenizer(models.WordLevel(dict(vocabulary)))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrap(backend, template, markers, eos=eos, pad=pad, bos=None, name=name)


def _wrap(
    backend: Tokenizer,
    template: str | None,
    markers: Sequence[str],
    *,
    eos: str | None,
    pad: str | None,
    bos: str | None,
    name: str,
) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in markers])
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=eos,
        pad_token=pad,
        bos_token=bos,
        clean_up_tokenization_spaces=False,
        name_or_path=name,
    )
    tokenizer.chat_template = template
    return tokenizer
