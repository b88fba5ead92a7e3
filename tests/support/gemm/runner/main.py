"""Entry of the timing program: the plan is its one argument, its results are JSON lines on standard output.

Nothing imports it; `bundle` makes it the start of the shipped file.
"""

import json
import sys

from .devices import device_of
from .measure import measure


def main() -> None:
    """Print each result as soon as it is there."""
    plan = json.loads(sys.argv[1])
    for line in measure(plan, device_of(plan["device"])):
        print(json.dumps(line), flush=True)
