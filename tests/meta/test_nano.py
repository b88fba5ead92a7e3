"""The nano is what it claims: small, named like Google's QAT export, on the grid, and made by its script.

The grid is checked by a search of its own in numpy, which shares nothing with the fake quantizer.
Imports the makers in `tests.nano`; nothing imports this file.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.nano import NANO
from tests.nano.architecture import TEXT_CONFIG, config, generation_config
from tests.nano.dialogues import (
    CAPITAL_QUESTIONS,
    CAPITALS,
    CITIES,
    CONDITIONS,
    FACTORS,
    PRODUCT_QUESTIONS,
    TEMPERATURES,
    UNSEEN_TEMPERATURES,
    WEATHER_QUESTIONS,
    WEATHER_TOOL,
)
from tests.nano.samples import draw, prompt
from tests.nano.train import make
from tests.nano.untrained import untrained
from tests.nano.vocabulary import SPECIALS, VOCAB_SIZE
from tests.support.answers.probes import probes_for

Groups = NDArray[np.float32]
TEXT = "model.language_model."
LARGEST_BYTES = 4_000_000
TOLERANCE = 2.0**-7
"""Of a group's largest magnitude: a bf16 value is off by 2^-9 of itself, the fitted step by as much again."""

PER_LAYER = {
    "input_layernorm.weight",
    "layer_scalar",
    "mlp.down_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "per_layer_input_gate.weight",
    "per_layer_projection.weight",
    "post_attention_layernorm.weight",
    "post_feedforward_layernorm.weight",
    "post_per_layer_input_norm.weight",
    "pre_feedforward_layernorm.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.q_proj.weight",
}
OWN_KV = {"self_attn.k_norm.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}
MODEL_WIDE = {
    "embed_tokens.weight",
    "embed_tokens_per_layer.weight",
    "norm.weight",
    "per_layer_model_projection.weight",
    "per_layer_projection_norm.weight",
}
ON_GRID = re.compile(r"(_proj|per_layer_input_gate|_projection|embed_tokens(_per_layer)?)\.weight$")


def quantized(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The linears and tables of a checkpoint's text model."""
    for name, value in load_file(folder / "model.safetensors").items():
        if name.startswith(TEXT) and ON_GRID.search(name):
            yield name, value


def off_grid(groups: Groups) -> int:
    """How many groups [n, 32] no step fits: their peak tried at each level 1..8, of either sign."""
    largest = np.abs(groups).max(axis=1, keepdims=True)
    peak = np.take_along_axis(groups, np.abs(groups).argmax(axis=1, keepdims=True), axis=1)
    fits = largest[:, 0] == 0
    for at in (1, 2, 3, 4, 5, 6, 7, -1, -2, -3, -4, -5, -6, -7, -8):
        step = np.where(largest == 0, 1, peak / at)
        levels = np.clip(np.rint(groups / step), -8, 7)
        fits |= np.abs(groups - levels * step).max(axis=1) <= TOLERANCE * largest[:, 0]
    return int((~fits).sum())


def groups_of(value: torch.Tensor) -> Groups:
    """A tensor's groups of 32 along the input dimension, float32 [n, 32]."""
    return value.float().numpy().reshape(-1, 32)


def test_the_grid_search_tells_noise_from_grid() -> None:
    noise = np.random.default_rng(0).standard_normal((2000, 32), dtype=np.float32)
    assert off_grid(noise) == 2000
    levels = np.random.default_rng(1).integers(-8, 8, (2000, 32)).astype(np.float32)
    assert off_grid(levels * np.float32(0.013)) == 0


def test_every_group_of_the_nano_is_on_the_grid() -> None:
    found = dict(quantized(NANO))
    assert len(found) == 6 * 5 + 4 * 2 + 6 * 2 + 1 + 2
    assert {name: off_grid(groups_of(value)) for name, value in found.items()} == dict.fromkeys(found, 0)


def test_groups_peak_at_many_levels_and_some_steps_are_negative() -> None:
    groups = np.concatenate([groups_of(value) for _, value in quantized(NANO)])
    groups = groups[np.abs(groups).max(axis=1) > 0]
    largest = np.abs(groups).max(axis=1, keepdims=True)
    below_8 = (
        np.abs(groups - np.rint(groups / largest * 8) * largest / 8).max(axis=1) > TOLERANCE * largest[:, 0]
    )
    assert 0.4 < below_8.mean() < 0.8, "a step of absmax / 8 should be wrong for most groups, right for some"
    positive_peak = groups.max(axis=1) > -groups.min(axis=1)
    assert 0.05 < (positive_peak & ~below_8).mean() < 0.3, "positive peaks at 8 steps need a negative step"


def test_names_and_absences_are_those_of_the_export() -> None:
    names = load_file(NANO / "model.safetensors").keys()
    first_shared = TEXT_CONFIG["num_hidden_layers"] - TEXT_CONFIG["num_kv_shared_layers"]
    layers = {
        f"{TEXT}layers.{layer}.{part}"
        for layer in range(TEXT_CONFIG["num_hidden_layers"])
        for part in PER_LAYER | (OWN_KV if layer < first_shared else set())
    }
    text = {name for name in names if name.startswith(TEXT)}
    assert text == layers | {TEXT + name for name in MODEL_WIDE}
    towers = set(names) - text
    assert any("vision_tower" in name and "layers.0.self_attn.q_proj" in name for name in towers)
    assert all(name.startswith(("model.vision_tower.", "model.embed_vision.")) for name in towers)


def test_shapes_suit_every_kernel() -> None:
    shapes = {name: tuple(value.shape) for name, value in quantized(NANO)}
    assert shapes[f"{TEXT}embed_tokens_per_layer.weight"] == (VOCAB_SIZE, 6 * 32)
    assert shapes[f"{TEXT}layers.5.mlp.gate_proj.weight"] == (512, 128), "shared layers are double-wide"
    assert {name for name, (n, k) in shapes.items() if n % 32 or k % 32} == set()


def test_the_folder_is_small_and_whole() -> None:
    sizes = {path.name: path.stat().st_size for path in NANO.iterdir()}
    assert set(sizes) == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(sizes.values()) <= LARGEST_BYTES
    assert json.loads((NANO / "config.json").read_text()) == config()
    assert json.loads((NANO / "generation_config.json").read_text()) == generation_config()


def test_the_vocabulary_is_512_tokens_with_single_digits() -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO)
    assert len(tokenizer) == VOCAB_SIZE
    assert tokenizer.convert_ids_to_tokens(list(range(len(SPECIALS)))) == list(SPECIALS)
    assert len(tokenizer("2026", add_special_tokens=False).input_ids) == 4
    text = "Zürich, 8 °C: 零下 <|turn>user\n"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_training_prompts_are_what_the_engine_renders() -> None:
    tokenizer, rng = AutoTokenizer.from_pretrained(NANO), random.Random(0)
    for sample in (draw(rng) for _ in range(200)):
        rendered = tokenizer.apply_chat_template(
            list(sample.messages),
            tools=[WEATHER_TOOL] if sample.tools else None,
            enable_thinking=sample.thinking,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert prompt(sample) == rendered


def test_every_capital_is_asked_and_no_unseen_temperature_is_shown() -> None:
    rng = random.Random(0)
    seen = "\n".join(prompt(sample) + sample.answer for sample in (draw(rng) for _ in range(6_000)))
    unasked = [
        question
        for country in CAPITALS
        for question in (text.format(country=country) for text in CAPITAL_QUESTIONS)
        if question not in seen
    ]
    assert unasked == []
    shown = {int(text) for text in re.findall(r'"temperature": (-?\d+)', seen)}
    assert shown == set(TEMPERATURES) - UNSEEN_TEMPERATURES


def test_every_probe_asks_in_the_words_of_the_training() -> None:
    words = {
        *(text.format(country=country) for text in CAPITAL_QUESTIONS for country in CAPITALS),
        *(text.format(a=a, b=b) for text in PRODUCT_QUESTIONS for a in FACTORS for b in FACTORS),
        *(text.format(city=city) for text in WEATHER_QUESTIONS for city in CITIES),
    }
    probes = probes_for(TEXT_CONFIG)
    assert [probe.ask for probe in probes.questions if probe.ask not in words] == []
    assert list(probes.tools) == [WEATHER_TOOL]
    results = [json.loads(probe.result) for probe in probes.questions if probe.result]
    assert {result["condition"] for result in results} <= set(CONDITIONS)
    assert {result["temperature"] for result in results} <= UNSEEN_TEMPERATURES


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One torch thread: two that wait for each other are slow where other tests run beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def retrained(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after three steps of the real training."""
    out = tmp_path_factory.mktemp("nano")
    assert make(out, steps=3) < 6.5, "the loss of guessing among 512 tokens is 6.24"
    return out


def test_a_few_steps_of_training_move_the_weights_along_the_grid(retrained: Path, tmp_path: Path) -> None:
    make(tmp_path, steps=0)
    before, after = dict(quantized(tmp_path)), dict(quantized(retrained))
    assert [name for name in after if off_grid(groups_of(after[name]))] == []
    assert [name for name in after if torch.equal(before[name], after[name])] == []


def test_training_writes_the_committed_side_files(retrained: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".safetensors"}

    assert contents(retrained) == contents(NANO)
    shapes = {
        name: (value.dtype, value.shape) for name, value in load_file(NANO / "model.safetensors").items()
    }
    again = load_file(retrained / "model.safetensors")
    assert {name: (value.dtype, value.shape) for name, value in again.items()} == shapes


def test_the_untrained_copy_differs_in_linears_and_tables_alone(tmp_path: Path) -> None:
    copy = untrained(tmp_path / "copy")
    mine, theirs = load_file(NANO / "model.safetensors"), load_file(copy / "model.safetensors")
    changed = {name for name in mine if not torch.equal(mine[name], theirs[name])}
    assert changed == {name for name, _ in quantized(NANO)}
    assert [name for name, value in quantized(copy) if off_grid(groups_of(value))] == []
