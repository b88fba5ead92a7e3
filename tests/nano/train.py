"""Makes the nano: `python -m tests.nano.train --out DIR`, about five minutes on two cores, seed fixed.

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
from tests.nano.samples import draw, prompt
from tests.nano.tokenizer import build_tokenizer, write_tokenizer
from tests.nano.vocabulary import token_id

SEED = 4
STEPS = 1500
BATCH = 32
PEAK_LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
IGNORED = -100


def new_model() -> Gemma4ForCausalLM:
    """An untrained text model in float32, its layer scalars set to the table's constants."""
    torch.manual_seed(SEED)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**{**TEXT_CONFIG, "dtype": "float32"}))
    for layer, scalar in zip(model.model.layers, LAYER_SCALARS, strict=True):
        layer.layer_scalar.fill_(scalar)
    return model


def batches(tokenizer: Tokenizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless pairs of ids and labels, int64 [BATCH, longest], padded right; prompts carry no loss."""
    rng = random.Random(SEED)
    while True:
        samples = [draw(rng) for _ in range(BATCH)]
        before = [tokenizer.encode(prompt(s), add_special_tokens=False).ids for s in samples]
        answers = [tokenizer.encode(s.answer, add_special_tokens=False).ids for s in samples]
        longest = max(len(b) + len(a) for b, a in zip(before, answers, strict=True))
        ids = torch.full((BATCH, longest), token_id("<pad>"))
        labels = torch.full((BATCH, longest), IGNORED)
        for row, (b, a) in enumerate(zip(before, answers, strict=True)):
            ids[row, : len(b) + len(a)] = torch.tensor(b + a)
            labels[row, len(b) : len(b) + len(a)] = torch.tensor(a)
        yield ids, labels


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
        loss.backward()
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
    print(f"final loss {make(arguments.out, arguments.steps):.5f}, written to {arguments.out}")


if __name__ == "__main__":
    main()
