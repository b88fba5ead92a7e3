"""Where a source lies: a folder, or a repository of the Hugging Face hub and the folder it is kept in. No network.

`hub` downloads; `options` and the record ask here. Knows no test and no engine.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from quantkit.errors import QuantkitError

PIN = "quantkit-source.json"  # beside the weights, written when the last file is there
REPOSITORY = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?")


class SourceRefused(QuantkitError):
    """The hub will not give this repository to us: a licence, a token or a name is wrong."""


class HubUnreachable(QuantkitError):
    """The hub cannot be asked now, or broke off too often; what was downloaded is kept."""


@dataclass(frozen=True)
class HubSource:
    """A repository that a source is downloaded from.

    Attributes
    ----------
    revision
        Branch, tag or commit as asked for.
    folder
        Where its files are kept, once downloaded.
    """

    repo: str
    revision: str
    folder: Path

    @property
    def page(self) -> str:
        """The page on which a licence is accepted."""
        return f"https://huggingface.co/{self.repo}"

    @property
    def whole(self) -> bool:
        """Whether every file is there."""
        return (self.folder / PIN).is_file()


def hub_source(text: str, checkpoints: Path) -> HubSource | None:
    """The repository that ``OWNER/NAME[@REVISION]`` names; None where a folder of that name is here."""
    found = REPOSITORY.fullmatch(text)
    if found is None or Path(text).is_dir():
        return None
    repo, revision = found["repo"], found["revision"] or "main"
    name = repo.replace("/", "--") + (f"@{revision}" if found["revision"] else "")
    return HubSource(repo, revision, checkpoints / "hub" / name)


def folder_of(text: str, checkpoints: Path) -> Path:
    """The folder of a source, be it there already or still to be downloaded."""
    source = hub_source(text, checkpoints)
    return Path(text).resolve() if source is None else source.folder


def pin_of(folder: Path) -> dict[str, str]:
    """Repository and commit that a folder was downloaded from; empty for a folder of the user's own."""
    path = folder / PIN
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def write_pin(source: HubSource, commit: str) -> None:
    """Say that the folder is whole, and of which commit."""
    pin = {"repo": source.repo, "revision": source.revision, "commit": commit}
    (source.folder / PIN).write_text(json.dumps(pin, indent=1) + "\n", encoding="utf-8")
