"""Cases of the kind ``token_mask``: which family an input belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.testing import cases_completions, cases_templates, cases_turns
from posttrain.testing.case_file import Adapter, Facts, Given, NotYetError

FAMILIES: Mapping[str, Adapter] = {
    "reencoded_ids": cases_turns.retokenised,
    "reencoded_len": cases_turns.retokenised,
    "think_open": cases_turns.cut_reasoning,
    "turn1_prompt": cases_turns.turns,
    "old_tokens": cases_turns.resumed,
    "segments": cases_turns.segments,
    "library_appends": cases_turns.appended,
    "rows_needing_tool_round": cases_turns.tool_rounds,
    "template_has_assistant_markers": cases_templates.assistant_markers,
    "assistant_text_ids": cases_templates.given_turn,
    "tokenizer": cases_templates.missing_template,
    "labels_before": cases_templates.labels,
    "prompt_len": cases_templates.long_prompt,
    "prompts": cases_completions.equal_prompts,
    "score": cases_completions.reward_on_end,
    "completion": cases_completions.ended,
    "special_ids": cases_completions.aligned,
    "attention_mask": cases_completions.positions,
    "lengths": cases_completions.padded_logprobs,
    "tool_mask": cases_turns.masked_by_tools,
}
"""By the key that tells a family from the others; the first that occurs counts."""


def adapter(given: Given, expected: Given) -> Facts:
    """Facts of one case."""
    for key, family in FAMILIES.items():
        if key in given:
            return family(given, expected)
    raise NotYetError(f"no family of token cases has the keys {sorted(given)}")
