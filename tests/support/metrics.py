"""A server's /metrics as a mapping, and the KV pool that it declares.

Reads the Prometheus text format with the client library's parser. Knows no log. Imported by `serving`, `sweep`.
"""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from quantkit.errors import QuantkitError

CACHE_INFO = "vllm:cache_config_info"


class MetricMissing(QuantkitError):
    """The server does not report a figure that it must."""


Key = tuple[str, tuple[tuple[str, str], ...]]


class Metrics(Mapping[str, float]):
    """Samples by name, added up over their labels; the labels stay at hand in `labels`."""

    def __init__(self, text: str) -> None:
        self._sums: dict[str, float] = {}
        self.labels: dict[str, dict[str, str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._sums[sample.name] = self._sums.get(sample.name, 0.0) + sample.value
                self.labels[sample.name] = dict(sample.labels)

    def __getitem__(self, name: str) -> float:
        return self._sums[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._sums)

    def __len__(self) -> int:
        return len(self._sums)

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
