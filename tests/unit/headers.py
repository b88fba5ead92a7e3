"""Plans from configs alone: the headers that a config implies, without a file. Only unit tests import it."""

from collections.abc import Mapping
from typing import Any

from quantkit.formats import format_named
from quantkit.model import inventory
from quantkit.plan import Plan, make_plan
from quantkit.writer import Stored


def headers_of(config: Mapping[str, Any]) -> dict[str, Stored]:
    """dtype and shape of every tensor that the config implies."""
    return {tensor.name: Stored(tensor.name, "BF16", tensor.shape) for tensor in inventory(config).tensors}


def plan_of(config: Mapping[str, Any], name: str, kept: frozenset[str] = frozenset()) -> Plan:
    """The plan for a checkpoint that is just what its config says."""
    return make_plan(config, headers_of(config), format_named(name), kept)
