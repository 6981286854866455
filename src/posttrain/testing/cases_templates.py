"""Token cases on templates and data: what a given conversation trains, and what is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.data.chat import Renderer
from posttrain.data.conversations import conversation
from posttrain.data.lengths import PromptLimit
from posttrain.data.models import load_tokenizer
from posttrain.data.sources import Rows
from posttrain.data.store import read_groups, write_groups
from posttrain.errors import DataError, PosttrainError, TemplateError
from posttrain.testing.case_file import Facts, Given, NotYetError, Text
from posttrain.testing.toy import CHATML, byte_tokenizer, word_tokenizer
from posttrain.testing.toy_ids import word, words
from posttrain.types.episode import Group
from posttrain.types.message import Message, Messages

ASSISTANT_ONLY = ("assistant only", "assistant turns", "assistant")
MARKED = CHATML.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}")
TALK: Messages = (Message("user", "2+2"), Message("assistant", "4"), Message("user", "why"),
                  Message("assistant", "so"))  # fmt: skip


def assistant_markers(given: Given, _expected: Given) -> Facts:
    """Training on assistant turns, whether or not the template marks them."""
    if str(given.get("train_on", ASSISTANT_ONLY[0])) not in ASSISTANT_ONLY:
        raise NotYetError(f"unknown train_on {given['train_on']!r}")
    template = MARKED if given["template_has_assistant_markers"] else CHATML
    renderer = Renderer(byte_tokenizer(template=template))
    try:
        ids, mask = conversation(renderer, TALK)
    except PosttrainError as error:
        return {"raises_or_derives_mask": True, "all_zero_mask_used": False,
                "raises": True, "message_mentions": Text(str(error))}  # fmt: skip
    said = renderer.tokenizer.decode(ids[mask].tolist())
    derived = said == "4<|im_end|>so<|im_end|>"
    return {
        "raises_or_derives_mask": derived,
        "all_zero_mask_used": not bool(mask.any()),
        "raises": False,
        "trainable": int(mask.sum()),
    }


def given_turn(given: Given, _expected: Given) -> Facts:
    """A given turn, its end, and the header of what follows it."""
    text = [int(i) for i in given["assistant_text_ids"]]
    end = _listed(given["end_of_turn"])
    header = _listed(given["next_turn_header"])
    highest = max(*text, *end, *header) + 1
    own = highest + 1  # the assistant's header is none of the ids given
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}" + word(own) + "{% else %}"
        + words(header) + "{% endif %} {{ m.content }} " + words(end) + " {% endfor %}"
        "{% if add_generation_prompt %}" + word(own) + "{% endif %}"
    )  # fmt: skip
    tokenizer = word_tokenizer(
        {word(i): i for i in range(own + 1)},
        template=template,
        markers=[word(i) for i in (*end, *header, own)],
        eos=word(end[-1]),
    )
    asked, filler = words([highest]), words([highest])
    talk = (Message("user", asked), Message("assistant", words(text)), Message("user", filler),
            Message("assistant", filler))  # fmt: skip
    ids, mask = conversation(Renderer(tokenizer), talk)
    start = int(np.argmax(mask))
    window = slice(start, start + len(text) + len(end) + len(header))
    found = mask[window].astype(int).tolist()
    return {"ids": ids[window].tolist(), "mask": found, "loss_mask": found, "trainable": sum(found)}


def _listed(value: Any) -> list[int]:
    return [int(v) for v in value] if isinstance(value, list) else [int(value)]


def missing_template(given: Given, _expected: Given) -> Facts:
    """A tokenizer without a chat template, and chat messages or plain strings to train on."""
    described, data = str(given["tokenizer"]), str(given.get("data", "chat messages"))
    if "without a chat template" not in described:
        raise NotYetError(f"unknown tokenizer {described!r}")
    if not any(kind in data for kind in ("chat", "messages", "string", "text")):
        raise NotYetError(f"unknown data {data!r}")
    name = "toy/base-model"
    renderer = Renderer(byte_tokenizer(template=None, name=name))
    try:
        renderer.check(chat="chat" in data or "messages" in data)
    except TemplateError as error:
        text = str(error)
        return {
            "raises": True,
            "message_mentions": Text(text),
            "message_names": {
                "the tokenizer": name in text,
                "the option that sets a template": "Trained.template" in text,
                "the option to set": "Trained.template" in text,
            },
        }
    return {"raises": False}


def labels(given: Given, _expected: Given) -> Facts:
    """Labels of a row, through a source and a file of stored groups."""
    if str(given.get("source_dtype", "int")) not in ("bool", "int", "int64", "int32", "float"):
        raise NotYetError(f"unknown source_dtype {given['source_dtype']!r}")
    source = Rows(({"prompt": "-", "labels": list(given["labels_before"])},))
    group = Group(key=(0, 0, 0), task=source.at(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "groups.parquet"
        write_groups(path, [group])
        found = read_groups(path)[0].task.columns["labels"]
    if not isinstance(found, list):
        raise DataError(f"labels came back as {found!r}")
    kinds = {str(type(v).__name__) for v in list[Any](found)}
    return {
        "labels_after": found,
        "dtype": kinds.pop() if len(kinds) == 1 else f"mixed {sorted(kinds)}",
        "labels_len": len(found),
    }


def long_prompt(given: Given, _expected: Given) -> Facts:
    """A prompt over the limit beside one within it."""
    length, limit = int(given["prompt_len"]), int(given["max_prompt"])
    renderer = Renderer(load_tokenizer("tiny"))
    extra = len(renderer.raw("1")) - 1
    rows = Rows(({"prompt": "1" * (length - extra), "id": "long"}, {"prompt": "2", "id": "short"}))
    kept = PromptLimit(source=rows, max_tokens=limit, model="tiny")
    drawn = kept.draw({}, 4, np.random.default_rng(0))
    whole = {t.id: len(renderer.raw(str(t.prompt))) for t in drawn}
    strict = PromptLimit(source=rows, max_tokens=limit, model="tiny", long="refuse")
    refused = ""
    try:
        strict.size()
    except DataError as error:
        refused = str(error)
    over = length > limit
    return {
        "silently_cut": whole.get("long", length) != length,
        "crash_later": any(n > limit for n in whole.values()),
        "counted": (kept.dropped == 1) == over,
        "dropped": kept.dropped,
        "raises": bool(refused),
        "message_mentions": Text(refused),
    }
