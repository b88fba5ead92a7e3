"""What keeps a cache cold on a CPU: copies that lie in one room in turn, and as many of each as a token needs.

No time is measured; whether a cache is cold follows from how many bytes lie between two readings of one copy.
"""

import torch

from tests.support.gemm.runner.devices import Cpu
from tests.support.gemm.runner.measure import copies_in_turn


def test_every_turn_reads_memory_of_its_own() -> None:
    """On a CPU the copies that fill a cache lie in one room: distinct in memory, and equal in value."""
    device = Cpu()
    kept = device.weights("int4", 64, 64, 1, 0)
    (cold,) = device.cold([(kept, kept.copies_in(5 * kept.size_bytes))])
    assert len({part.data_ptr() for copy in cold.copies for part in copy}) == 5 * len(kept.copies[0])
    for copy in cold.copies:
        assert all(torch.equal(mine, right) for mine, right in zip(copy, kept.copies[0], strict=True))
    assert len(kept.copies) == 1
    item = device.product("int4", 2, cold)
    first = item(0).clone()
    assert all(torch.equal(item(turn), first) for turn in range(1, 5))
    again, more = device.cold([(kept, 3), (kept, 3)])
    assert again.copies[0][0].data_ptr() == cold.copies[0][0].data_ptr()
    assert more.copies[0][0].data_ptr() not in {copy[0].data_ptr() for copy in again.copies}


def test_a_token_comes_back_to_no_weight_before_the_cache_is_full() -> None:
    """Of two products in turn, 8 and 4 KiB in bf16: 20 KiB are two of the first and one of the second."""
    device = Cpu()
    sizes = {"a": 64, "b": 32, "c": 32}
    items = {
        name: device.product("bf16", 1, device.weights("bf16", n, 64, 1, 0)) for name, n in sizes.items()
    }
    order = ["a", "b", "a", "b", "a", "c"]
    assert copies_in_turn(order, items, 20 << 10) == {"a": 2, "b": 1, "c": 1}
    assert copies_in_turn(order, items, 0) == {"a": 1, "b": 1, "c": 1}
