"""Makes the nano: `python -m tests.nano.train --out DIR`, minutes on one core, seed fixed.

Quantization-aware from the first step: the forward pass sees only values that the export can store.
Joins samples, tokenizer, qat and export. Imported by `tests.meta` alone.
"""

import argparse
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.func import functional_call
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from tests.nano import CHAT_TEMPLATE
from tests.nano.architecture import LAYER_SCALARS, TEXT_CONFIG
from tests.nano.export import write_checkpoint
from tests.nano.qat import straight_through
from tests.nano.samples import Sample, draw, prompt
from tests.nano.tokenizer import build_tokenizer, write_tokenizer
from tests.nano.vocabulary import token_id

SEED = 4
STEPS = 2200
BATCH = 16
BATCHES_SORTED_TOGETHER = 8
PEAK_LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
BETAS = (0.9, 0.98)
IGNORED = -100


def new_model() -> Gemma4ForCausalLM:
    """An untrained text model in float32, its layer scalars set to the table's constants."""
    torch.manual_seed(SEED)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**{**TEXT_CONFIG, "dtype": "float32"}))
    for layer, scalar in zip(model.model.layers, LAYER_SCALARS, strict=True):
        layer.layer_scalar.fill_(scalar)
    return model


def encoded(tokenizer: Tokenizer, sample: Sample) -> tuple[list[int], int]:
    """A sample's ids, and how many of them stand before the answer."""
    before = tokenizer.encode(prompt(sample), add_special_tokens=False).ids
    answer = tokenizer.encode(sample.answer, add_special_tokens=False).ids
    return before + answer, len(before)


def padded(rows: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    """Ids and labels, int64 [rows, longest], padded right; prompts and padding carry no loss."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), longest), token_id("<pad>"))
    labels = torch.full((len(rows), longest), IGNORED)
    for row, (row_ids, n_before) in enumerate(rows):
        ids[row, : len(row_ids)] = torch.tensor(row_ids)
        labels[row, n_before : len(row_ids)] = torch.tensor(row_ids[n_before:])
    return ids, labels


def batches(tokenizer: Tokenizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of ids and labels; rows of like length stand together, so that little is padding."""
    rng = random.Random(SEED)
    while True:
        rows = [encoded(tokenizer, draw(rng)) for _ in range(BATCH * BATCHES_SORTED_TOGETHER)]
        rows.sort(key=lambda row: len(row[0]))
        starts = list(range(0, len(rows), BATCH))
        rng.shuffle(starts)
        yield from (padded(rows[start : start + BATCH]) for start in starts)


def loss_of(model: Gemma4ForCausalLM, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of the answers' tokens, the weights fake-quantized; a scalar."""
    weights = {
        name: straight_through(name.removeprefix("model."), value) for name, value in model.named_parameters()
    }
    output = functional_call(model, weights, kwargs={"input_ids": ids, "use_cache": False})
    logits = output.logits[:, :-1].flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=IGNORED)


def train(model: Gemma4ForCausalLM, tokenizer: Tokenizer, steps: int) -> float:
    """Trains in place, AdamW under a one-cycle cosine; the mean loss of the last steps."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=steps + 1, pct_start=min(0.5, WARMUP_STEPS / steps)
    )
    losses, began = [], time.monotonic()
    for step, (ids, labels) in zip(range(1, steps + 1), batches(tokenizer), strict=False):
        loss = loss_of(model, ids, labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0 or step == steps:
            recent = sum(losses[-50:]) / len(losses[-50:])
            print(f"step {step}/{steps}  loss {recent:.4f}  {time.monotonic() - began:.0f} s", flush=True)
    return sum(losses[-50:]) / len(losses[-50:])


def make(out: Path, steps: int) -> float:
    """Writes a whole checkpoint folder and returns the final loss; zero steps leave it untrained."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer, model = build_tokenizer(SEED), new_model()
    loss = train(model, tokenizer, steps) if steps else float("nan")
    write_checkpoint(model.state_dict(), out)
    write_tokenizer(tokenizer, out)
    if out.resolve() != CHAT_TEMPLATE.parent:
        shutil.copyfile(CHAT_TEMPLATE, out / CHAT_TEMPLATE.name)
    return loss


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint; made where absent")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(
        1
    )  # sums in one order on any number of cores; tensors this small gain little from more
    print(f"final loss {make(arguments.out, arguments.steps):.5f}, written to {arguments.out}")


if __name__ == "__main__":
    main()
