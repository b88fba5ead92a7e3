"""Make a Gemma 4 checkpoint of real shapes with random weights on the 4-bit grid.

`python -m benchmarks.e2b_shaped OUT` makes the full 9.3 GB of E2B; `--layers 7 --vocabulary 32768` a tenth.
"""

import argparse
from pathlib import Path

from benchmarks.shaped import fewer_layers, make_checkpoint, real_config


def main() -> None:
    """Parse and make."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="E2B", choices=("E2B", "E4B", "12B", "31B"))
    parser.add_argument("--layers", type=int, help="fewer layers of the same widths")
    parser.add_argument("--vocabulary", type=int, help="fewer rows in the tables")
    parser.add_argument("--towers", type=int, default=1411, help="tower tensors, tiny ones, to be left out")
    parser.add_argument("--shard-bytes", type=int, default=1 << 62, help="largest shard; by default one file")
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args()
    config = real_config(parsed.size)
    layers = parsed.layers or config["text_config"]["num_hidden_layers"]
    config = fewer_layers(config, layers, parsed.vocabulary)
    make_checkpoint(
        parsed.out, config, seed=parsed.seed, towers=parsed.towers, shard_bytes=parsed.shard_bytes
    )
    size = sum(path.stat().st_size for path in parsed.out.iterdir())
    print(f"{parsed.out}: {size:,} bytes")


if __name__ == "__main__":
    main()
