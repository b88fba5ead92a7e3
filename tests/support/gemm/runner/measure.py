"""Runs a plan on a device and yields one line a result; budgets, refusals, drift, and which samples are kept.

Knows no kernel. A line is a JSON object whose ``kind`` is facts, copy, empty, control, cell, token, drift or end.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from .devices import Cpu, Sample
from .forms import FORMS, WrongValues, random_codes
from .products import Product, Weights, check

Line = dict[str, Any]
COPY_SAMPLES = 5
ANCHOR_SAMPLES = 5
REFUSALS = (RuntimeError, NotImplementedError, AttributeError, ValueError, TypeError)


def measure(plan: Line, device: Cpu) -> Iterator[Line]:
    """All results of a plan; the last line counts those before it, so that a truncated run shows."""
    lines = 0
    for line in _lines(plan, device):
        lines += 1
        yield line
    yield {"kind": "end", "lines": lines}


def _lines(plan: Line, device: Cpu) -> Iterator[Line]:
    yield {"kind": "facts", "seed": torch.seed(), **device.facts()}
    yield _copy(plan, device)
    yield from _empty(device)
    anchor = _anchor(plan, device)
    for backend in plan["backends"]:
        bench = Bench(plan, device, backend)
        yield bench.control()
        for rows in plan["rows"]:
            before = _steady(anchor, device)
            yield from bench.cell(rows)
            after = _steady(anchor, device)
            yield {"kind": "drift", "backend": backend, "rows": rows, "before_s": before, "after_s": after}


def _steady(anchor: Sample, device: Cpu) -> float:
    device.settle(anchor)
    return statistics.median(anchor() for _ in range(ANCHOR_SAMPLES))


def _copy(plan: Line, device: Cpu) -> Line:
    source = random_codes((plan["copy_bytes"],), FORMS["int8"], device.torch)
    target = torch.empty_like(source).fill_(1)
    sample = device.timer([partial(target.copy_, source)], True)
    device.settle(sample)
    seconds = [sample() for _ in range(COPY_SAMPLES)]
    return {"kind": "copy", "bytes": 2 * plan["copy_bytes"], "seconds": seconds}  # read and written


def _empty(device: Cpu) -> Iterator[Line]:
    tiny = torch.ones(1, device=device.torch)
    if (eager := device.eager_s([tiny.zero_])) is not None:
        sample = device.timer([tiny.zero_], True)
        device.settle(sample)
        yield {"kind": "empty", "seconds": [sample() for _ in range(COPY_SAMPLES)], "eager_s": eager}


def _anchor(plan: Line, device: Cpu) -> Sample:
    """One product timed again and again: if it slows down, the clock has moved and not the format."""
    at = plan["shapes"][len(plan["shapes"]) // 2]
    weights = device.weights("bf16", at["n"], at["k"], 1, plan["span_bytes"])
    item = device.product("bf16", 1, weights)
    return device.timer([partial(item, turn) for turn in range(len(weights.copies))], False)


class Bench:
    """One backend: its weights, made when first needed, and the cells timed with them."""

    def __init__(self, plan: Line, device: Cpu, backend: str) -> None:
        self.plan, self.device, self.backend = plan, device, backend
        self.weights: dict[str, Weights] = {}

    def control(self) -> Line:
        """One square product: the dense peak that shares are taken of."""
        side = self.plan["control_side"]
        line, _ = self._timed({"name": "", "n": side, "k": side, "count": 1}, side, span=0)
        self.weights.clear()
        return {"kind": "control", "backend": self.backend, "side": side, **line}

    def cell(self, rows: int) -> Iterator[Line]:
        """Each shape alone, then a whole token, as far as the time budget of the cell goes."""
        spent, pace, token = 0.0, 0.0, {}
        budget, least = self.plan["budget_s"], self.plan["least_samples"]
        for shape in self.plan["shapes"]:
            size = shape["n"] * shape["k"]
            if spent + pace * size * (1 + least) > budget:
                line: Line = {"outcome": "not_run", "reason": f"over the time budget of {budget:g} s"}
            else:
                line, item = self._timed(shape, rows, self.plan["span_bytes"])
            if line["outcome"] == "ok":
                spent += line["first_s"] + sum(line["seconds"])
                pace = (
                    min(line["first_s"], *line["seconds"]) / size
                )  # a sample that was interrupted predicts nothing
                token[shape["name"]] = (item, pace * size)
            yield {"kind": "cell", "backend": self.backend, "rows": rows, "shape": shape["name"], **line}
        yield {"kind": "token", "backend": self.backend, "rows": rows, **self._token(token)}

    def _timed(self, shape: Line, rows: int, span: int) -> tuple[Line, Product | None]:
        """Outcome, and seconds where the values were right; a refusal is a result and ends nothing."""
        try:
            kept = self._weights(shape, span)
            (cold,) = self.device.cold([(kept, kept.copies_in(span))])
            item = self.device.product(self.backend, rows, cold)
            worst, first_s = check(item)
            calls = [partial(item, turn) for turn in range(len(item.weights.copies))]
            seconds = self._samples(self.device.timer(calls, False), self._allowance(first_s))
            eager_s = self.device.eager_s(calls)
            item.weights = kept
        except WrongValues as wrong:
            return {"outcome": "wrong", "reason": str(wrong)}, None
        except torch.OutOfMemoryError as full:
            return {"outcome": "not_run", "reason": _first_line(full)}, None
        except REFUSALS as refusal:
            self.device.assert_alive()
            return {"outcome": "unsupported", "reason": _first_line(refusal)}, None
        line: Line = {"outcome": "ok", "reason": "", "kernel": item.kernel, "first_s": first_s}
        line |= {"error_over_bound": worst, "seconds": seconds, "eager_s": eager_s}
        return line, item

    def _weights(self, shape: Line, span: int) -> Weights:
        if shape["name"] not in self.weights:
            count = shape["count"] if self.plan["distinct"] else 1
            self.weights[shape["name"]] = self.device.weights(
                self.backend, shape["n"], shape["k"], count, span
            )
        return self.weights[shape["name"]]

    def _allowance(self, first_s: float) -> float:
        return max(0.0, float(self.plan["budget_s"]) / (2 * len(self.plan["shapes"])) - first_s)

    def _samples(self, sample: Sample, allowance_s: float) -> list[float]:
        self.device.settle(sample)
        seconds: list[float] = []
        least, most = self.plan["least_samples"], self.plan["samples"]
        while len(seconds) < least or (len(seconds) < most and sum(seconds) < allowance_s):
            seconds.append(sample())
        return seconds

    def _token(self, timed: dict[str, tuple[Product | None, float]]) -> Line:
        """All products of a token one after the other, each reading its own weights."""
        budget, order = self.plan["budget_s"], self.plan["order"]
        if missing := sorted(set(order) - set(timed)):
            return {"outcome": "not_run", "reason": f"not timed alone: {', '.join(missing)}"}
        if sum(timed[name][1] for name in order) * self.plan["least_samples"] > budget:
            return {"outcome": "not_run", "reason": f"over the time budget of {budget:g} s"}
        items = {name: item for name, (item, _) in timed.items() if item is not None}
        copies = copies_in_turn(order, items, self.plan["span_bytes"])
        cold = self.device.cold([(item.weights, copies[name]) for name, item in items.items()])
        for item, weights in zip(items.values(), cold, strict=True):
            item.weights = weights
        turns = dict.fromkeys(items, 0)
        calls = []
        for name in order:
            calls.append(partial(items[name], turns[name]))
            turns[name] += 1
        seconds = self._samples(self.device.timer(calls, True), budget / 2)
        return {"outcome": "ok", "reason": "", "seconds": seconds, "distinct": self.plan["distinct"]}


def copies_in_turn(order: Sequence[str], items: Mapping[str, Product], span: int) -> Counter[str]:
    """Copies of each weight with which a token, read in order, comes back to none before it has read `span` bytes."""
    copies: Counter[str] = Counter()
    filled = 0
    for name in order:
        if filled < span or name not in copies:
            copies[name] += 1
            filled += items[name].weights.size_bytes
    return copies


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"
