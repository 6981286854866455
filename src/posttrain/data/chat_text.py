"""A chat template applied to messages, as text and as ids, with errors that name the cause.

Nothing here looks at what a model said: the text that is tokenised comes from tasks, environments
and fixed dummy turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jinja2

from posttrain.errors import TemplateError
from posttrain.types.message import JSON, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tools: TypeAlias = Sequence[Mapping[str, JSON]]
"""JSON schemas of the tools a template announces to the model."""


def read_template(template: str) -> str:
    """The template itself, or the content of the file that it names."""
    if "{" in template or "\n" in template or not template:
        return template
    path = Path(template).expanduser()
    if not path.is_file():
        raise TemplateError(
            f"the chat template {template!r} is neither a Jinja template (it holds no '{{') nor a "
            f"file ({path.absolute()} does not exist). Give Trained.template the template's text "
            "or the path of a file that holds it."
        )
    return path.read_text(encoding="utf-8")


def as_template_message(message: Message) -> dict[str, Any]:
    """A message the way chat templates expect it; call arguments parsed where they are JSON."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        out["name"] = message.name
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return out


def _arguments(text: str) -> Any:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that decoding leaves out: markers, not text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = (i for i, token in added.items() if token.special)
    return frozenset((*tokenizer.all_special_ids, *marked))


def eos_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokenizer's end id as a tuple, empty where it has none."""
    eos = tokenizer.eos_token_id
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, Iterable) else (int(eos),)


class ChatText:
    """Messages to text, and text to ids without anything added."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.name = str(tokenizer.name_or_path or type(tokenizer).__name__)
        self._given = None if template is None else read_template(template)

    @property
    def has_template(self) -> bool:
        """Whether chat messages can be rendered at all."""
        return bool(self._given or self.tokenizer.chat_template)

    def template(self, tools: Tools | None = None) -> str:
        """The template in use, as text.

        Raises:
            TemplateError: there is none.
        """
        if self._given:
            return self._given
        if not self.has_template:
            raise TemplateError(
                f"the tokenizer {self.name!r} has no chat template, but the prompts are chat "
                "messages. Set Trained.template to a chat template (its text or a file of it), "
                "take an instruction-tuned model, or give prompts as plain strings."
            )
        return self.tokenizer.get_chat_template(tools=_as_list(tools))

    def render(
        self, messages: Iterable[Message], *, generation: bool, tools: Tools | None = None
    ) -> str:
        """The text of a conversation, with or without the header of the next assistant turn."""
        listed = list(messages)
        template = self.template(tools)
        try:
            text = self.tokenizer.apply_chat_template(
                [as_template_message(m) for m in listed],
                tools=_as_list(tools),
                chat_template=template,
                add_generation_prompt=generation,
                tokenize=False,
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            roles = ", ".join(m.role for m in listed)
            raise TemplateError(
                f"the chat template of {self.name!r} could not render a conversation with the "
                f"roles [{roles}]: {error}. Give it roles it knows, in an order it accepts, or "
                "set Trained.template to a template that does."
            ) from error
        return str(text)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, nothing added at either end."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, nothing added at either end."""
        if not texts:
            return []
        encoded = self.tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        return [[int(i) for i in ids] for ids in encoded["input_ids"]]

    def prefix(self) -> tuple[int, ...]:
        """Ids this tokenizer puts before a plain text (a begin token), if any."""
        ids = [int(i) for i in self.tokenizer("", verbose=False)["input_ids"]]
        ends = [i for i, token in enumerate(ids) if i and token in eos_ids(self.tokenizer)]
        return tuple(ids[: ends[0]] if ends else ids)


def _as_list(tools: Tools | None) -> list[Any] | None:
    return None if tools is None else [dict(t) for t in tools]
