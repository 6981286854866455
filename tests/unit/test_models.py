"""Models from a folder, a GGUF file and a hub that breaks off; every refusal names the file."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.data.chat import Renderer
from posttrain.data.gguf_header import read_integers
from posttrain.data.models import load_model, load_tokenizer
from posttrain.errors import ConfigError, DataError, MissingExtraError
from posttrain.testing.toy import CHATML, byte_tokenizer
from posttrain.types.message import Message

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(name="toy", merges=[("h", "e"), ("e", "r")])


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(3)
    config = LlamaConfig(
        **SIZES, **HEADS, vocab_size=len(tokenizer), max_position_embeddings=64,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture
def folder(tmp_path, model, tokenizer) -> Path:
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def test_a_folder_gives_the_weights_and_the_tokenizer(folder, model, tokenizer):
    found = load_model(folder, dtype="float64")
    assert not found.training
    for name, weight in model.named_parameters():
        loaded = found.get_parameter(name)
        assert loaded.dtype == torch.float64
        torch.testing.assert_close(loaded, weight.double(), rtol=0, atol=0)
    again = load_tokenizer(str(folder))
    assert again.name_or_path == str(folder)
    assert Renderer(again).tokenizer_hash == Renderer(tokenizer).tokenizer_hash
    assert Renderer(again).template_hash == Renderer(tokenizer).template_hash


def test_a_missing_place_lists_what_was_tried(tmp_path):
    with pytest.raises(ConfigError, match="does not exist") as caught:
        load_model(tmp_path / "none")
    assert str(tmp_path / "none") in str(caught.value)


def test_a_folder_without_a_config_lists_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"no config\.json.*it holds notes\.txt"):
        load_model(tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"not a \.gguf file"):
        load_model(tmp_path / "model.bin")


def test_half_a_weights_file_is_named_with_both_sizes(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"{len(whole) // 2} of {len(whole)} bytes") as caught:
        load_model(folder)
    assert str(weights) in str(caught.value)
    weights.write_bytes(b"\x00" * 64)
    with pytest.raises(DataError, match="no readable header"):
        load_model(folder)


def test_a_shard_that_never_came_is_named(folder):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"model-00001-of-00002\.safetensors"):
        load_model(folder)


def test_weights_that_would_be_random_are_refused(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"model\.norm\.weight.*would be random"):
        load_model(folder)


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer) -> None:
    """The toy model in 32-bit GGUF; query and key rows in the order that format keeps them."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(1)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([word for word, _ in vocabulary])
    special = set(tokenizer.all_special_ids) | {tokenizer.convert_tokens_to_ids("<|im_start|>")}
    writer.add_token_types([3 if i in special else 1 for _, i in vocabulary])
    writer.add_token_merges(["h e", "e r"])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.convert_tokens_to_ids("<|im_start|>"))
    writer.add_chat_template(CHATML)
    names = {"embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
             "input_layernorm": "blk.0.attn_norm", "post_attention_layernorm": "blk.0.ffn_norm",
             "q_proj": "blk.0.attn_q", "k_proj": "blk.0.attn_k", "v_proj": "blk.0.attn_v",
             "o_proj": "blk.0.attn_output", "gate_proj": "blk.0.ffn_gate",
             "up_proj": "blk.0.ffn_up", "down_proj": "blk.0.ffn_down"}  # fmt: skip
    for name, weight in model.named_parameters():
        short = next(n for n in names if n in name)
        array = weight.detach().numpy()
        heads = {"q_proj": 2, "k_proj": 1}.get(short)
        if heads:
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(f"{names[short]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_model_tokenizer_and_template(tmp_path, model, tokenizer):
    path = tmp_path / "toy.gguf"
    write_gguf(path, model, tokenizer)
    found = load_model(path)
    ids = torch.tensor([[1, 200, 3, 77, 5]])
    torch.testing.assert_close(found(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)
    assert all(p.requires_grad for p in found.parameters())
    renderer = Renderer(load_tokenizer(path))
    prompt = renderer.prompt((Message("user", "he"),)).tolist()
    assert prompt[-1] == renderer.chat.encode("\n")[0]
    assert renderer.end_ids == (tokenizer.eos_token_id,)
    found.save_pretrained(tmp_path / "again")
    torch.testing.assert_close(load_model(tmp_path / "again")(ids).logits, found(ids).logits)


def test_settings_are_read_off_a_gguf_header(tmp_path, model, tokenizer):
    path = tmp_path / "toy.gguf"
    write_gguf(path, model, tokenizer)
    settings = read_integers(path)
    assert settings["tokenizer.ggml.eos_token_id"] == tokenizer.eos_token_id
    assert settings["llama.feed_forward_length"] == 64
    assert not any("tokens" in key or "name" in key for key in settings)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match="ends early"):
        read_integers(path)


def test_a_damaged_gguf_file_is_named(tmp_path, model, tokenizer):
    path = tmp_path / "toy.gguf"
    write_gguf(path, model, tokenizer)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"toy\.gguf \(\d+ bytes\) cannot be read"):
        load_model(path)
    path.write_bytes(b"<html>404")
    with pytest.raises(DataError, match="begins with b'<htm'"):
        load_model(path)
    with pytest.raises(ConfigError, match=r"holds toy\.gguf"):
        load_model(tmp_path / "tot.gguf")


def test_gguf_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"posttrain\[gguf\]"):
        load_model(tmp_path / "toy.gguf")


class HalfHub(http.server.BaseHTTPRequestHandler):
    """Serves a folder as a hub does, and breaks off in the middle of the weights."""

    folder: Path

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        file = self.folder / self.path.split("?")[0].split("/")[-1]
        if "/resolve/" not in self.path or not file.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = file.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{len(data):040d}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data[: len(data) // 2] if "safetensors" in file.name else data)
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.mark.slow
def test_a_download_that_breaks_off_names_the_file(folder, tmp_path):
    HalfHub.folder = folder
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HalfHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    code = (
        "from posttrain.data.models import load_model\n"
        "from posttrain.errors import DataError\n"
        "try:\n    load_model('some/model')\n"
        "except DataError as error:\n    print('REFUSED', error)\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    env = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**env, "PATH": ""}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    server.shutdown()
    server.server_close()
    assert f"REFUSED the download of {url}/some/model/resolve/main/model.safetensors" in done.stdout


def test_the_tiny_reasoner_loads_by_name():
    one, same = load_model("tiny", dtype="float32", seed=2), load_model("tiny", seed=2)
    other = load_model("tiny", seed=3)
    weights = [next(m.parameters()) for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    renderer = Renderer(load_tokenizer("tiny"))
    assert renderer.check().end_ids == renderer.end_ids
    with torch.no_grad():
        weights[0].zero_()
    assert weights[1].abs().max() > 0
