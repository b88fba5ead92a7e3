"""The KV pool that a server declares in its /metrics.

Reads the Prometheus text format with the client library's parser. Knows no log. Imported by `serving`.
"""

from prometheus_client.parser import text_string_to_metric_families

from quantkit.errors import QuantkitError

CACHE_INFO = "vllm:cache_config_info"


class MetricMissing(QuantkitError):
    """The server does not report a figure that it must."""


class Metrics:
    """The labels of each sample, by its name."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.labels = {sample.name: sample.labels for family in families for sample in family.samples}

    def label(self, sample: str, name: str) -> str:
        """One label of one sample.

        Raises
        ------
        MetricMissing
            With what there is instead.
        """
        labels = self.labels.get(sample, {})
        if name not in labels:
            raise MetricMissing(
                f"{sample} in /metrics", got=sorted(labels) or "none", expected=f"a label {name}"
            )
        return labels[name]

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV pool holds."""
        return int(self.label(CACHE_INFO, "kv_cache_size_tokens"))

    @property
    def prefix_caching(self) -> bool:
        """Whether prompts may be served from the prefix cache."""
        return self.label(CACHE_INFO, "enable_prefix_caching") == "True"
