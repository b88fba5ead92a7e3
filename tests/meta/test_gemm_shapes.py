"""The products of a token are those the engine runs: counts and sizes of every dense Gemma 4, by hand."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from quantkit.errors import UnknownModel
from quantkit.formats import FORMATS
from quantkit.model import Role, inventory
from tests.support.gemm.backends import Backend, backend_of
from tests.support.gemm.shapes import published_token, token_of, token_of_file

CONFIGS = Path(__file__).parents[1] / "configs"
PUBLISHED = Path(__file__).parents[2] / "baselines" / "mi300x" / "published" / "gemm.json"

# model: products a token; and of each kind its (n, k): count
E2B = {
    "per_layer_input_gate": {(256, 1536): 35},
    "per_layer_projection": {(1536, 256): 35},
    "per_layer_model_projection": {(8960, 1536): 1},
    "qkv_proj": {(2560, 1536): 12, (5120, 1536): 3},
    "q_proj": {(2048, 1536): 16, (4096, 1536): 4},
    "o_proj": {(1536, 2048): 28, (1536, 4096): 7},
    "gate_up_proj": {(12288, 1536): 15, (24576, 1536): 20},
    "down_proj": {(1536, 6144): 15, (1536, 12288): 20},
    "lm_head": {(262144, 1536): 1},
}
PRODUCTS = {"gemma-4-E2B": 212, "gemma-4-E4B": 254, "gemma-4-12B": 193, "gemma-4-31B": 241}


def by_kind(name: str) -> dict[str, dict[tuple[int, int], int]]:
    found: dict[str, dict[tuple[int, int], int]] = {}
    for shape in token_of_file(CONFIGS / f"{name}.json").shapes:
        found.setdefault(shape.kind, {})[shape.n, shape.k] = shape.count
    return found


def test_e2b_by_hand() -> None:
    assert by_kind("gemma-4-E2B") == E2B


def test_a_token_is_read_in_the_order_of_a_forward_pass() -> None:
    """What all layers share first, each layer's products, the head last."""
    kinds = [shape.kind for shape in token_of_file(CONFIGS / "gemma-4-E2B.json").order]
    layer = [
        "qkv_proj",
        "o_proj",
        "gate_up_proj",
        "down_proj",
        "per_layer_input_gate",
        "per_layer_projection",
    ]
    assert kinds[:13] == ["per_layer_model_projection", *layer, *layer]
    assert kinds[-1] == "lm_head"


def test_a_model_is_named_by_its_file_or_its_folder(tmp_path: Path) -> None:
    config = CONFIGS / "gemma-4-E2B.json"
    (tmp_path / "mine").mkdir()
    copied = shutil.copy(config, tmp_path / "mine" / "config.json")
    assert (token_of_file(config).model, token_of_file(Path(copied)).model) == ("gemma-4-E2B", "mine")


@pytest.mark.parametrize(("name", "products"), PRODUCTS.items())
def test_products_of_every_size(name: str, products: int) -> None:
    token = token_of_file(CONFIGS / f"{name}.json")
    assert len(token.order) == products
    assert sum(shape.count for shape in token.shapes) == products
    assert token.order[-1].kind == "lm_head"


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_linear_is_in_a_product(name: str) -> None:
    """Fusing loses no weight: the products hold those of all linears, the head's, and v's slot where it equals k."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    found = inventory(config)
    c = found.config
    equal_v = sum(at.kv_rows * c.hidden_size for at in c.layers if at.owns_kv and not at.owns_v)
    linears = sum(tensor.values for tensor in found.of(Role.LINEAR))
    assert token_of(config, name).weights == linears + equal_v + c.vocab_size * c.hidden_size


def test_key_equal_to_value_keeps_its_slot() -> None:
    """31B's full layers ship no v_proj, and vLLM fills v's slot with k: 16384 + 2 x 4 x 512 rows."""
    assert by_kind("gemma-4-31B")["qkv_proj"][20480, 5376] == 10


def test_a_mixture_of_experts_is_refused() -> None:
    config = json.loads((CONFIGS / "gemma-4-12B.json").read_text())
    config["text_config"]["enable_moe_block"] = True
    with pytest.raises(UnknownModel, match="mixture-of-experts"):
        token_of(config, "26B")


def test_what_the_published_list_omits_and_adds() -> None:
    """It lacks the 71 projections of the per-layer embeddings, and counts K and V on 20 layers that have none."""
    listed = published_token(json.loads(PUBLISHED.read_text()))
    own = token_of_file(CONFIGS / "gemma-4-E2B.json")
    assert len(listed.order) == 141
    missing = Counter((s.n, s.k) for s in own.order) - Counter((s.n, s.k) for s in listed.order)
    added = Counter((s.n, s.k) for s in listed.order) - Counter((s.n, s.k) for s in own.order)
    assert missing == {(256, 1536): 35, (1536, 256): 35, (8960, 1536): 1, (2048, 1536): 16, (4096, 1536): 4}
    assert added == {(2560, 1536): 16, (5120, 1536): 4}


def test_every_build_has_backends() -> None:
    """Linears by their scheme, the head by the tables: a build with int4 tables mixes two."""
    assert [backend_of(build, "o_proj") for build in FORMATS.values()] == [
        Backend.BF16,
        Backend.FP8,
        Backend.FP8FNUZ,
        Backend.FP8,
        Backend.FP8FNUZ,
        Backend.INT8,
        Backend.INT8,
        Backend.INT4,
        Backend.INT4,
        Backend.INT4,
    ]
    heads = [name for name, build in FORMATS.items() if backend_of(build, "lm_head") is Backend.INT4]
    assert heads == ["fp8emb4", "fp8fnuzemb4", "w8a8emb4", "q4w4a16emb4"]
