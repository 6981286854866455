"""The renderer on toy tokenizers: every id is worked out from the template by hand."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.data.chat import Renderer
from posttrain.data.conversations import conversation
from posttrain.errors import DataError, TemplateError
from posttrain.testing.toy import CHATML, LLAMA_STYLE, LLAMA_STYLE_MARKERS, byte_tokenizer
from posttrain.types.ask import Decode
from posttrain.types.message import Message, ToolCall

# Earlier turns lose their reasoning; the last turn is written with a block even if it had none.
STRIPPING = (
    "{% set last = namespace(user=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > last.user and loop.last %}"
    "<think>\n\n</think>\n\n{{ m.content }}"
    "{% elif m.role == 'assistant' and loop.index0 < last.user %}"
    "{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_GENERATION_PROMPT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.role == 'assistant' %}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }} {{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
TEXT_END = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TWO_MARKERS = CHATML.replace("<|im_end|>\n", "<|im_end|><|stop|>\n")
LAST_TURN_DIFFERS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|say|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|say|>{% endif %}"
)
HEADER_ENDS = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

ASK = (Message("user", "2+2"),)
MORE = (Message("user", "why"),)


def text(renderer: Renderer, ids) -> str:
    return renderer.tokenizer.decode([int(i) for i in ids])


def chatml(**options) -> Renderer:
    return Renderer(byte_tokenizer(**options))


def llama(template: str = LLAMA_STYLE) -> Renderer:
    tokenizer = byte_tokenizer(
        template=template, markers=LLAMA_STYLE_MARKERS, eos="<|eot|>", bos="<|bos|>", pad=None
    )
    return Renderer(tokenizer)


def test_a_prompt_is_the_template_with_the_generation_prompt():
    r = chatml()
    assert text(r, r.prompt(ASK)) == "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"
    assert r.prompt(ASK).dtype == np.int32


def test_a_trailing_assistant_message_is_gone_on_with():
    r = chatml()
    got = text(r, r.prompt((*ASK, Message("assistant", "It is"))))
    assert got.endswith("<|im_start|>assistant\nIt is")


def test_a_prompt_without_messages_is_refused():
    with pytest.raises(DataError, match="no messages"):
        chatml().prompt(())


def test_tool_call_arguments_reach_the_template_parsed():
    template = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.x }}"
    r = Renderer(byte_tokenizer(), template + "{% endfor %}{% endfor %}")
    message = Message("user", "", tool_calls=(ToolCall("add", '{"x": 41}'),))
    assert r.chat.render((message,), generation=False) == "41"


def test_bridge_closes_an_open_turn_and_leaves_a_closed_one():
    r = chatml()
    tail = "\n<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n"
    assert text(r, r.bridge(MORE, closed=True)) == tail
    assert text(r, r.bridge(MORE, closed=False)) == "<|im_end|>" + tail


def test_prompt_turn_and_bridge_make_the_whole_rendering():
    r = chatml()
    answer = Message("assistant", "4")
    parts = [r.prompt(ASK), r.assistant("4"), r.bridge(MORE, closed=True)]
    whole = r.chat.render((*ASK, answer, *MORE), generation=True)
    assert np.concatenate(parts).tolist() == r.chat.encode(whole)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_bridge_of_a_template_that_strips_reasoning_keeps_history_out_of_it(role):
    r = chatml(template=STRIPPING)
    got = text(r, r.bridge((Message(role, "why"),), closed=True))
    assert got == f"\n<|im_start|>{role}\nwhy<|im_end|>\n<|im_start|>assistant\n"


def test_bridge_refuses_a_role_that_the_template_moves_elsewhere():
    hoisting = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
        + CHATML.replace("in messages %}", "in messages if m.role != 'system' %}")
    )
    with pytest.raises(TemplateError, match="role 'system'"):
        chatml(template=hoisting).bridge((Message("system", "be kind"),), closed=True)


def test_bridge_wraps_what_the_template_refuses():
    with pytest.raises(TemplateError, match=r"roles \[user, assistant, tool\].*only user"):
        llama(INSTRUCT).bridge((Message("tool", "4"),), closed=True)


def test_a_turn_cut_by_length_gets_its_end_and_a_half_written_end_is_completed():
    markers = ("<|im_start|>", "<|im_end|>", "<|stop|>")
    r = chatml(template=TWO_MARKERS, markers=markers, pad=None)
    encode = r.chat.encode
    tail = "\n<|im_start|>user\nwhy<|im_end|><|stop|>\n<|im_start|>assistant\n"
    cut = encode("four")
    assert text(r, r.bridge(MORE, closed=False, after=cut)) == "<|im_end|><|stop|>" + tail
    half = encode("four<|im_end|>")
    assert text(r, r.bridge(MORE, closed=True, after=half)) == "<|stop|>" + tail
    given = r.assistant("four")
    assert text(r, given) == "four<|im_end|><|stop|>"
    assert text(r, r.bridge(MORE, closed=True, after=given)) == tail
    assert r.end_ids == (encode("<|im_end|>")[0],)


def test_a_turn_ended_by_another_end_token_is_not_closed_twice():
    r = chatml()
    other = r.chat.encode("4<|endoftext|>")
    stop = Renderer(r.tokenizer, stop_ids=other[-1:])
    assert stop.end_ids == (r.tokenizer.eos_token_id, other[-1])
    got = text(r, stop.bridge(MORE, closed=True, after=other))
    assert got == "\n<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n"


def test_reasoning_left_open_is_closed_before_the_next_turn():
    r = chatml()
    cut = r.chat.encode("<think>so 2")
    got = text(r, r.bridge(MORE, closed=False, after=cut))
    assert got.startswith("</think><|im_end|>\n<|im_start|>user\nwhy")
    whole = r.chat.encode("<think>so</think>4<|im_end|>")
    assert text(r, r.bridge(MORE, closed=True, after=whole)).startswith("\n<|im_start|>user")


def test_reasoning_opened_by_the_header_counts_as_open():
    r = chatml(template=CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"))
    cut = r.chat.encode("so 2")
    assert text(r, r.bridge(MORE, closed=False, after=cut)).startswith("</think><|im_end|>\n")


def test_no_token_of_a_drawn_turn_is_encoded_again():
    r = chatml(merges=[("h", "e")])
    split = [*r.chat.encode("h"), *r.chat.encode("e"), r.end_ids[0]]
    assert r.chat.encode("he") != split[:2]
    row = [*r.prompt(ASK), *split, *r.bridge(MORE, closed=True, after=split)]
    assert row[len(r.prompt(ASK)) :][:3] == split
    assert r.decode(split)[0] == "he"


def test_end_of_turn_belongs_to_the_given_turn_and_the_header_does_not():
    r = chatml()
    ids, mask = conversation(r, (*ASK, Message("assistant", "4"), *MORE, Message("assistant", "=")))
    assert text(r, ids[mask]) == "4<|im_end|>=<|im_end|>"
    assert r.show(ids, mask) == (
        "<|im_start|>user\\n2+2<|im_end|>\\n<|im_start|>assistant\\n⟦4<|im_end|>⟧"
        "\\n<|im_start|>user\\nwhy<|im_end|>\\n<|im_start|>assistant\\n⟦=<|im_end|>⟧"
    )


def test_a_conversation_without_an_assistant_turn_is_refused():
    with pytest.raises(DataError, match=r"\['user'\]"):
        conversation(chatml(), ASK)


def test_llama_style_template_writes_the_begin_token_once():
    r = llama()
    bos = r.tokenizer.bos_token_id
    assert r.prompt(ASK).tolist().count(bos) == 1
    assert text(r, r.bridge(MORE, closed=False)) == (
        "<|eot|><|h|>user<|/h|>\n\nwhy<|eot|><|h|>assistant<|/h|>\n\n"
    )
    assert bos not in r.bridge(MORE, closed=False)
    assert r.raw("<|bos|>2+2").tolist() == r.raw("2+2").tolist()
    assert r.raw("2+2")[0] == bos
    assert r.check().end_ids == (r.chat.encode("<|eot|>")[0],)


def test_header_is_taken_from_the_turns_where_the_generation_prompt_is_missing():
    r = chatml(template=NO_GENERATION_PROMPT)
    assert text(r, r.prompt(ASK)) == "user: 2+2\nassistant:"
    assert text(r, r.bridge(MORE, closed=True)) == "\nuser: why\nassistant:"
    assert text(r, r.assistant(" 4")) == " 4<|im_end|>"
    assert any("no generation prompt" in note for note in r.check().notes)


def test_a_template_whose_user_turn_opens_the_reply_needs_no_header():
    r = llama(INSTRUCT)
    assert text(r, r.prompt(ASK)) == "<|bos|>[INST] 2+2 [/INST]"
    assert text(r, r.assistant(" 4")) == " 4 <|eot|>"
    assert text(r, r.bridge(MORE, closed=False)) == " <|eot|>[INST] why [/INST]"


def test_a_last_turn_with_an_end_of_its_own():
    markers = ("<|start|>", "<|say|>", "<|end|>", "<|return|>", "<|call|>")
    tokenizer = byte_tokenizer(
        template=LAST_TURN_DIFFERS, markers=markers, eos="<|return|>", pad=None
    )
    call = tokenizer.convert_tokens_to_ids("<|call|>")
    r = Renderer(tokenizer, stop_ids=[call])
    assert text(r, r.assistant("4")) == "4<|return|>"
    assert r.end_ids == (tokenizer.eos_token_id, call)
    rest = "<|start|>user<|say|>why<|end|><|start|>assistant<|say|>"
    assert text(r, r.bridge(MORE, closed=True)) == rest
    assert text(r, r.bridge(MORE, closed=False)) == "<|end|>" + rest


def test_a_turn_ended_by_the_header_of_the_next():
    markers = ("<|user|>", "<|assistant|>", "<|endoftext|>")
    tokenizer = byte_tokenizer(template=HEADER_ENDS, markers=markers, eos="<|endoftext|>")
    r = Renderer(tokenizer, stop_ids=[tokenizer.convert_tokens_to_ids("<|user|>")])
    assert text(r, r.assistant("4")) == "4<|user|>"
    assert text(r, r.bridge(MORE, closed=True)) == "\nwhy<|assistant|>\n"
    assert text(r, r.bridge(MORE, closed=False)) == "<|user|>\nwhy<|assistant|>\n"
    with pytest.raises(TemplateError, match="never stops"):
        Renderer(tokenizer).check()


def test_an_end_of_several_plain_tokens_is_a_stop_string():
    r = chatml(template=TEXT_END, eos="<|endoftext|>")
    assert text(r, r.assistant("4")) == "4</turn>"
    assert r.end_strings == ("</turn>",)
    assert text(r, r.bridge(MORE, closed=True)) == "\n<user>why</turn>\n<assistant>"
    half = r.chat.encode("4</tu")
    assert text(r, r.bridge(MORE, closed=False, after=half)).startswith("rn>\n<user>why")
    assert r.closes(r.chat.encode("4</turn>"))
    assert not r.closes(half)
    report = r.check()
    assert report.shown.count("</turn>⟧") == 2
    assert any("stop string" in note for note in report.notes)


def test_a_template_that_never_ends_a_turn_is_refused_with_the_trained_tokens():
    r = chatml(template=CHATML.replace("<|im_end|>", ""), eos="<|endoftext|>")
    with pytest.raises(TemplateError, match=r"<\|endoftext\|>.*never stops.*⟦") as caught:
        r.check()
    assert "Trained.template" in str(caught.value)
    assert r.check(Decode(stop=("\n",))).shown


def test_padding_that_shares_the_end_id_is_noted_and_works():
    report = chatml(pad="<|im_end|>").check()
    assert any("told apart by place" in note for note in report.notes)
    assert report.shown.count("<|im_end|>⟧") == 2


def test_a_missing_template_names_the_tokenizer_and_the_option():
    r = chatml(template=None, name="base-model")
    for call in (r.check, lambda: r.prompt(ASK), lambda: r.bridge(MORE, closed=True)):
        with pytest.raises(TemplateError, match="chat template") as caught:
            call()
        assert "base-model" in str(caught.value)
        assert "Trained.template" in str(caught.value)
    assert r.template_hash == ""


def test_a_template_from_a_file_or_a_text_replaces_the_tokenizers(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(CHATML.replace("im_start", "im_end"))
    tokenizer = byte_tokenizer()
    from_file, own = Renderer(tokenizer, str(path)), Renderer(tokenizer)
    assert text(from_file, from_file.prompt(ASK)).startswith("<|im_end|>user")
    assert from_file.template_hash != own.template_hash
    assert from_file.template_hash == Renderer(tokenizer, path.read_text()).template_hash
    with pytest.raises(TemplateError, match=r"missing\.jinja"):
        Renderer(tokenizer, str(tmp_path / "missing.jinja"))


def test_string_prompts_need_no_template():
    r = chatml(template=None, eos="<|endoftext|>", pad=None)
    assert text(r, r.raw("2+2=")) == "2+2="
    assert text(r, r.assistant("4")) == "4<|endoftext|>"
    assert r.end_ids == (r.tokenizer.eos_token_id,)
    assert r.check(chat=False).shown.endswith("<|endoftext|>⟧")
    endless = chatml(template=None, eos=None, pad=None)
    with pytest.raises(TemplateError, match="no end token"):
        endless.check(chat=False)
    assert endless.check(Decode(stop=("\n",)), chat=False).end_ids == ()


def test_a_doubled_begin_token_in_the_template_is_refused():
    with pytest.raises(TemplateError, match=r"begin token '<\|bos\|>' twice"):
        llama("{{ bos_token }}" + LLAMA_STYLE).check()


def test_reasoning_that_the_template_cuts_in_half_is_refused():
    half = CHATML.replace("{{ m.content }}", "{{ m.content.replace('</think>', '') }}")
    with pytest.raises(TemplateError, match="without its '</think>'"):
        chatml(template=half).check()


def test_a_template_that_strips_reasoning_passes_with_a_note():
    assert any("rewrites" in note for note in chatml(template=STRIPPING).check().notes)
    assert chatml().check().notes == ()


def test_hashes_name_template_and_tokenizer():
    one, same = chatml(), chatml(name="other-name")
    assert one.template_hash == same.template_hash
    assert one.tokenizer_hash == same.tokenizer_hash
    assert one.tokenizer_hash != chatml(merges=[("h", "e")]).tokenizer_hash


def test_a_drawn_turn_becomes_a_message_without_markers():
    r = chatml()
    assert r.message(r.chat.encode("<think>x</think>4<|im_end|>")) == Message(
        "assistant", "<think>x</think>4"
    )
