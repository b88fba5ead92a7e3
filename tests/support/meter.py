"""Where a run stands: hours and dollars spent, hours and dollars left, and whether the budget allows the next item.

Pure: knows no clock and no pytest; `billing` feeds it with what it timed.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.cost import dollars, hours, stage_of
from tests.support.record import Key


@dataclass
class Meter:
    """Where a run stands: what it has taken, what is left, and whether the budget allows the next item.

    Attributes
    ----------
    expected
        Seconds of items that have a rate.
    left
        Items still to run.
    """

    expected: Mapping[Key, float]
    left: list[Key]
    price: float
    budget: float | None = None
    measured: dict[Key, float] = field(default_factory=dict)

    def ended(self, key: Key, seconds: float) -> None:
        """Count an item that has ended."""
        self.measured[key] = seconds
        self.left.remove(key)

    def _pace(self) -> float:
        both = [key for key in self.measured if key in self.expected]
        foreseen = sum(self.expected[key] for key in both)
        return sum(self.measured[key] for key in both) / foreseen if foreseen else 1.0

    def left_s(self) -> float | None:
        """Seconds left: rates corrected by this run's own pace, else the mean of like items; None if unknown."""
        pace, like = self._pace(), defaultdict[str, list[float]](list)
        for key, seconds in self.measured.items():
            like[stage_of(key)].append(seconds)
        total = 0.0
        for key in self.left:
            known = like[stage_of(key)]
            if key in self.expected:
                total += self.expected[key] * pace
            elif known:
                total += sum(known) / len(known)
            else:
                return None
        return total

    def line(self, spent_s: float) -> str:
        """``cost: 1.2 h so far, $2.39; about 3.1 h left, $6.17``."""
        so_far = f"cost: {hours(spent_s)} so far, {dollars(spent_s, self.price)}"
        left = self.left_s()
        ahead = (
            "not known yet how long still"
            if left is None
            else f"about {hours(left)} left, {dollars(left, self.price)}"
        )
        limit = "" if self.budget is None else f"; budget ${self.budget:.2f}"
        return f"{so_far}; {ahead}{limit}"

    def foreseen(self, spent_s: float) -> list[str]:
        """One line on whether the budget is enough for what has a rate; none without a budget or without rates."""
        if self.budget is None or not self.expected:
            return []
        whole_s = spent_s + sum(self.expected.values())
        enough = "is enough" if whole_s / 3600 * self.price < self.budget else "would stop it before its end"
        return [f"budget ${self.budget:.2f}: {enough}"]

    def refusal(self, key: Key, spent_s: float) -> str:
        """Why the budget does not allow an item to start; empty when it does."""
        if self.budget is None:
            return ""
        after_s = spent_s + self.expected.get(key, 0.0) * self._pace()
        if after_s / 3600 * self.price < self.budget:
            return ""
        so_far, after = dollars(spent_s, self.price), dollars(after_s, self.price)
        return f"the budget of ${self.budget:.2f} is spent: {so_far} so far, {after} with this item"
