"""Downloads a source through huggingface_hub: the commit pinned, resumable, and every refusal one sentence.

The token comes from HF_TOKEN alone and goes nowhere but to the hub. Imported where a source is a repository.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, get_session, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from quantkit.errors import QuantkitError
from tests.support.sources.source import HubSource, HubUnreachable, SourceRefused, pin_of, write_pin

RESUME = "run it again: it resumes where it broke off"
ANSWER_S = 10.0  # huggingface_hub itself waits for ever for a hub that is silent
FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True)
class Found:
    """A revision of a repository as the hub describes it: its commit, and the bytes of each file we take."""

    commit: str
    files: Mapping[str, int]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files we take."""
        return sum(self.files.values())

    def missing(self, folder: Path) -> list[str]:
        """Files that are not in a folder with their whole length."""
        there = {name: (folder / name).stat().st_size for name in self.files if (folder / name).is_file()}
        return [name for name, size in self.files.items() if there.get(name) != size]


def _token() -> str | bool:
    return os.environ.get("HF_TOKEN") or False  # False: no token that a login left on this host either


def _refusal(source: HubSource, why: Exception) -> QuantkitError:
    hint = f"open {source.page}, accept the licence, and set HF_TOKEN to a token that may read it"
    if isinstance(why, GatedRepoError):
        return SourceRefused(f"licence of {source.repo}", got="not accepted for this token", hint=hint)
    if isinstance(why, RevisionNotFoundError):
        return SourceRefused(
            f"revision of {source.repo}", got=source.revision, expected="a branch, tag or commit"
        )
    if isinstance(why, RepositoryNotFoundError):
        return SourceRefused(
            f"source {source.repo}", got="no such folder, and no repository that HF_TOKEN may read", hint=hint
        )
    here = os.strerror(why.errno) if isinstance(why, OSError) and why.errno else ""  # such as a full disk
    return HubUnreachable(f"download of {source.repo}", got=here or type(why).__name__, hint=RESUME)


FAULTS = (httpx2.HTTPError, OSError)


def look_up(source: HubSource) -> Found:
    """Commit and size of a repository; asks whether we may have its files, and downloads none.

    Raises
    ------
    SourceRefused
        A licence that is not accepted, a token or a name that is wrong; names the page to open.
    HubUnreachable
        Worth a retry.
    """
    api = HfApi(token=_token())
    get_session().timeout = ANSWER_S
    try:
        api.auth_check(source.repo)
        info = api.model_info(source.repo, revision=source.revision, files_metadata=True, timeout=ANSWER_S)
    except FAULTS as why:
        raise _refusal(source, why) from None
    taken = [file for file in info.siblings or () if any(fnmatch(file.rfilename, name) for name in FILES)]
    return Found(str(info.sha), {file.rfilename: file.size or 0 for file in taken})


def fetch(source: HubSource) -> dict[str, str]:
    """Download what is missing of a source; its pin: repository, revision asked for, and commit.

    Raises
    ------
    SourceRefused, HubUnreachable
        As `look_up`.
    """
    if source.whole:
        return pin_of(source.folder)
    found = look_up(source)
    try:
        snapshot_download(
            source.repo,
            revision=found.commit,
            local_dir=source.folder,
            allow_patterns=list(FILES),
            token=_token(),
        )
    except FAULTS as why:
        raise _refusal(source, why) from None
    missing = found.missing(source.folder)
    if missing:  # where the hub fails midway, huggingface_hub can return as if all were well
        raise HubUnreachable(f"download of {source.repo}", got=f"no whole {missing[0]}", hint=RESUME)
    write_pin(source, found.commit)
    return pin_of(source.folder)
