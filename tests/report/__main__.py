"""`python -m tests.report RUN`: writes a run's report beside its record and says where it is."""

import argparse
import sys
from pathlib import Path

from quantkit.errors import QuantkitError
from tests.report.write import write_comparison, write_report


def main(arguments: list[str] | None = None) -> int:
    """Write the report; 0, or 2 with one sentence where the run cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m tests.report", description=__doc__)
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="a run's folder, or a folder of published figures"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; RUN itself if not given")
    parser.add_argument(
        "--against", metavar="RUN2", help="another run's folder, or 'baseline': show the differences"
    )
    given = parser.parse_args(arguments)
    try:
        if given.against:
            print(write_comparison(given.run, given.against, given.out))
        else:
            print(write_report(given.run, given.out))
    except QuantkitError as fault:
        print(fault, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
