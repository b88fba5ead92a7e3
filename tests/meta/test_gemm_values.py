"""Values of the timed products: what random codes may be, and how far a product may be off, worked out by hand."""

import pytest
import torch

from tests.support.gemm.runner import forms
from tests.support.gemm.runner.devices import Cpu
from tests.support.gemm.runner.forms import FORMS, WrongValues, error_over_bound, random_codes
from tests.support.gemm.runner.products import Operand, check

BOUNDS = {  # of y = 1 x 1 + 2 x -1: a half of the output's last place, a half of float32's for each product; and more
    "bf16": (2**-8, 2**-8),
    "fp16": (2**-11, 2**-11),
    "fp8": (2**-8, 2**-10),
    "fp8fnuz": (2**-8, 2**-10),
    "int4": (2**-8, 2**-8),
}


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("name", BOUNDS)
def test_the_bound_by_hand(name: str, on_gpu: bool) -> None:
    """|y| is 1 and the magnitudes sum to 3; a GPU may round its partial sums, int4's weights are rounded anywhere."""
    unit, sums = BOUNDS[name]
    share = 2 * 2**-24 + (sums if on_gpu else 0.0) + (2**-8 if name == "int4" else 0.0)
    x, w = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[1.0, -1.0]])
    got = torch.tensor([[-1.0 + unit + 3 * share]]).double()
    assert error_over_bound(FORMS[name], got, x, w, on_gpu) == pytest.approx(1.0)
    assert FORMS[name].unit == torch.finfo(getattr(torch, FORMS[name].out)).eps / 2


@pytest.mark.parametrize("wrong", range(3))
def test_every_strip_of_columns_counts(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    monkeypatch.setattr(forms, "STRIP", 1)
    got = torch.full((1, 3), 2.0).double()
    got[0, wrong] = 9.0
    assert error_over_bound(FORMS["bf16"], got, torch.ones(1, 2).double(), torch.ones(3, 2), False) > 1


def test_a_cpu_may_not_round_as_a_gpu_may() -> None:
    device = Cpu()
    item = device.product("bf16", 4, device.weights("bf16", 96, 256, 1, 0))
    right = item.multiply

    def rounded(x: Operand, w: Operand, out: torch.Tensor) -> torch.Tensor:
        return right(x, w, out) + 2**-9 * (x[0].abs() @ w[0].t().abs())

    item.multiply = rounded
    with pytest.raises(WrongValues):
        check(item)


@pytest.mark.parametrize("name", FORMS)
def test_random_codes_are_finite_and_distinct(name: str) -> None:
    """No zero, no NaN; magnitudes from 2^-3 to 2; every value that the free bits can make, for int8 every byte."""
    form = FORMS[name]
    values = random_codes((512, 257), form, torch.device("cpu")).float()
    assert len(set(values.flatten().tolist())) == 2 ** (form.keep & ~form.base).bit_count()
    if name == "int8":
        return
    size = values.abs() * (2 if name == "fp8fnuz" else 1)
    assert bool((size >= 2**-3).all())
    assert bool((size < 2).all())
    assert bool((values < 0).any())
