"""What a server declares of its KV pool, and what is said where it declares nothing."""

import pytest

from tests.support.boot.metrics import MetricMissing, Metrics

POOL = 'vllm:cache_config_info{enable_prefix_caching="%s",kv_cache_size_tokens="729444"} 1.0\n'


@pytest.mark.parametrize(("said", "meant"), [("True", True), ("False", False), ("None", False)])
def test_the_pool_as_it_is_declared(said: str, meant: bool) -> None:
    metrics = Metrics("# HELP other x\nother 3.0\n" + POOL % said)
    assert (metrics.kv_tokens, metrics.prefix_caching) == (729_444, meant)


def test_a_pool_that_is_not_declared_is_named() -> None:
    with pytest.raises(MetricMissing, match=r"cache_config_info in /metrics, got none, expected a label kv_"):
        _ = Metrics("other 3.0\n").kv_tokens
    with pytest.raises(MetricMissing, match=r"got \['block_size'\], expected a label kv_cache_size_tokens"):
        _ = Metrics('vllm:cache_config_info{block_size="16"} 1.0\n').kv_tokens
