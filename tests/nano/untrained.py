"""A copy of the nano with random weights on the grid: right in every shape, wrong in every answer.

For negative controls. Knows the checkpoint folder and the grid; any suite may import it.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.nano import NANO
from tests.nano.export import TEXT_PREFIX
from tests.nano.qat import as_exported, is_quantized

SEED = 5
STANDARD_DEVIATION = 0.02


def untrained(out: Path) -> Path:
    """Writes a copy of the nano whose linears and tables are random values on the grid.

    Parameters
    ----------
    out : folder that does not exist yet

    Returns
    -------
    `out`; names, shapes, dtypes, side files and all other tensors are the nano's own.
    """
    shutil.copytree(NANO, out)
    generator = torch.Generator().manual_seed(SEED)

    def replaced(name: str, value: Tensor) -> Tensor:
        if not (name.startswith(TEXT_PREFIX) and is_quantized(name)):
            return value
        random = torch.randn(value.shape, generator=generator) * STANDARD_DEVIATION
        return as_exported(name.removeprefix(TEXT_PREFIX), random)

    trained = load_file(NANO / "model.safetensors")  # not the copy's: its map would be overwritten while read
    tensors = {name: replaced(name, value) for name, value in sorted(trained.items())}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


if __name__ == "__main__":
    print(untrained(Path(sys.argv[1])))
