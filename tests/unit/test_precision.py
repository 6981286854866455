"""Casting weights leaves what is no weight."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.data.precision import cast_weights


def test_parameters_are_cast_in_place_and_rotary_frequencies_are_not():
    config = LlamaConfig(
        vocab_size=7,
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = LlamaForCausalLM(config)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    weight = model.lm_head.weight
    before = weight.detach().clone()
    assert cast_weights(model, torch.bfloat16) is model
    assert model.lm_head.weight is weight  # an optimiser that holds it still does
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert torch.equal(weight.detach(), before.bfloat16())
    assert torch.equal(model.model.rotary_emb.inv_freq, frequencies)
    assert not torch.equal(frequencies.bfloat16().float(), frequencies)
