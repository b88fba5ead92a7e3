"""The vLLM plugin's own arithmetic, against the reference decoder; and that it does nothing where it must not."""

import sys
from types import SimpleNamespace

import pytest
import torch

from quantkit import vllm_cpu
from quantkit.reference import decode_int4

ROWS, WIDTH, GROUP = 64, 96, 32


@pytest.fixture
def packed() -> tuple[torch.Tensor, torch.Tensor]:
    """Random words, every nibble among them, and signed bfloat16 scales."""
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(-(2**31), 2**31, (ROWS, WIDTH // 8), generator=generator, dtype=torch.int64)
    scales = torch.randn((ROWS, WIDTH // GROUP), generator=generator).to(torch.bfloat16)
    return words.to(torch.int32), scales


def reference(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The values by the reference decoder, float32."""
    return torch.from_numpy(decode_int4(words.numpy(), scales.float().numpy()))


def test_lookup_is_the_reference(packed: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Every row looked up is the decoded row, rounded to the scales' dtype."""
    words, scales = packed
    ids = torch.tensor([0, 63, 7, 7, 31])
    rows = vllm_cpu.lookup_rows(words, scales, ids, 4)
    assert rows.dtype == torch.bfloat16
    assert torch.equal(rows, reference(words, scales)[ids].to(torch.bfloat16))


@pytest.mark.parametrize("tokens", [(1,), (5,), (2, 3)], ids=str)
def test_product_is_the_reference(packed: tuple[torch.Tensor, torch.Tensor], tokens: tuple[int, ...]) -> None:
    """A product differs from the decoded one by the rounding of its bfloat16 result: half of 2^-8 of the largest."""
    words, scales = packed
    x = torch.randn((*tokens, WIDTH), generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    bias = torch.ones(ROWS, dtype=torch.bfloat16)
    found = vllm_cpu.int4_product(x, *vllm_cpu.prepack_int4(words, scales))
    wanted = x.float() @ reference(words, scales).T
    assert found.shape == (*tokens, ROWS)
    assert float((found.float() - wanted).abs().max() / wanted.abs().max()) <= 2**-8
    shifted = vllm_cpu.int4_product(x, *vllm_cpu.prepack_int4(words, scales), bias)
    assert torch.equal(shifted, found + 1)


def test_bytes_are_counted_once_per_storage() -> None:
    """A tied head is one tensor, an empty placeholder none."""
    weight = torch.zeros(4, 4)
    named = [("embed", weight), ("head", weight), ("view", weight[:2]), ("gone", torch.empty(0))]
    assert list(vllm_cpu._tensor_bytes(named)) == [("embed", 64)]


@pytest.mark.parametrize("is_cpu", [True, False])
def test_patches_only_what_it_must(monkeypatch: pytest.MonkeyPatch, is_cpu: bool) -> None:
    """On a GPU, and in the process that loads no model, `register` imports and changes nothing."""
    asked: list[str] = []
    platform = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: is_cpu))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platform)
    monkeypatch.setattr(vllm_cpu, "import_module", asked.append)
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    vllm_cpu.register()
    assert asked == []
