"""What an image holds: run inside it as ``python3 -c THIS FAMILY ARCHITECTURE KERNEL...``, one JSON object out.

Standard library and the image's own torch; transformers and vllm are looked at as files, since importing them
takes half a minute.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path


def package(name: str) -> Path | None:
    """Folder of an installed package, without importing it."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def defined(folder: Path | None, names: list[str]) -> list[str]:
    """Those of the names that are a class somewhere under a folder."""
    texts = [path.read_text(errors="replace") for path in folder.rglob("*.py")] if folder else []
    return [
        name for name in names if any(f"class {name}(" in text or f"class {name}:" in text for text in texts)
    ]


def torch_archs() -> list[str]:
    """Architectures that the image's torch was built for; a CPU build says cpu."""
    import torch

    if torch.version.hip is None and torch.version.cuda is None:
        return ["cpu"]
    return [flag.split(":")[0] for flag in (torch._C._cuda_getArchFlags() or "").split()]


def cards() -> list[str]:
    """Architectures of the cards that torch sees from inside."""
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [getattr(card, "gcnArchName", f"sm_{card.major}{card.minor}").split(":")[0] for card in found]


def facts(family: str, architecture: str, kernels: list[str]) -> dict[str, object]:
    """Everything the preflight judges about an image."""
    transformers, vllm = package("transformers"), package("vllm")
    registry = vllm / "model_executor/models/registry.py" if vllm else Path("absent")
    return {
        "transformers": bool(transformers and (transformers / "models" / family).is_dir()),
        "vllm": registry.is_file() and f'"{architecture}"' in registry.read_text(),
        "archs": torch_archs(),
        "cards": cards(),
        "kernels": defined(vllm, kernels),
    }


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1], sys.argv[2], sys.argv[3:])))
