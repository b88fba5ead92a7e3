"""Sources from the hub: names, pins, refusals and broken transfers, through the real huggingface_hub on a fake hub."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta import small_project
from tests.meta.fake_hub import COMMIT, REPO, Hub, serving
from tests.support.sources import hub as downloads
from tests.support.sources.hub import Found
from tests.support.sources.source import HubSource, HubUnreachable, folder_of, hub_source, pin_of, write_pin

ROOT = Path(__file__).parents[2]
TOKEN = "hf_madeUpToken"
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "chat_template.jinja": b"x",
    "tokenizer.model": b"y",
    "merges.txt": b"z",
    "pytorch_model.bin": b"no",
}
FETCH = """
import json, sys
from pathlib import Path
from quantkit.errors import QuantkitError
from tests.support.sources.hub import fetch
from tests.support.sources.source import hub_source
try:
    print(json.dumps(fetch(hub_source(sys.argv[1], Path(sys.argv[2])))))
except QuantkitError as why:
    print(json.dumps({"kind": type(why).__name__, "says": str(why)}))
"""


def fetch(hub: Hub, folder: Path, text: str = REPO, token: str = TOKEN) -> dict[str, str]:
    """What a process that downloads ends with: the pin, or the error."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    env = {**keep, **own, **({"HF_TOKEN": token} if token else {})}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, text, str(folder)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert TOKEN not in done.stdout + done.stderr
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_folder_is_itself_and_a_name_is_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    assert hub_source(str(tmp_path / "a/b"), tmp_path) is None
    assert hub_source("tests/nano/gemma-4-nano", tmp_path) is None
    monkeypatch.chdir(tmp_path)
    assert hub_source("a/b", tmp_path) is None
    assert hub_source("google/x", tmp_path) == HubSource("google/x", "main", tmp_path / "hub/google--x")
    assert folder_of("google/x@v1", tmp_path) == tmp_path / "hub/google--x@v1"
    assert folder_of("a/b/c", tmp_path) == Path("a/b/c").resolve()
    assert HubSource("google/x", "main", tmp_path).page == "https://huggingface.co/google/x"


def test_a_folder_is_whole_with_its_pin(tmp_path: Path) -> None:
    source = HubSource("google/x", "main", tmp_path)
    assert not source.whole
    assert pin_of(tmp_path) == {}
    write_pin(source, COMMIT)
    assert source.whole
    assert pin_of(tmp_path) == {"repo": "google/x", "revision": "main", "commit": COMMIT}


@pytest.mark.parametrize("text", [REPO, f"{REPO}@{COMMIT}"])
def test_a_download_is_whole_pinned_and_then_needs_no_hub(tmp_path: Path, text: str) -> None:
    with serving(Hub(FILES, moves=True)) as hub:
        assert fetch(hub, tmp_path, text)["commit"] == COMMIT
    folder = folder_of(text, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in FILES} == {
        name: body for name, body in FILES.items() if name != "pytorch_model.bin"
    }
    assert {asked[3] for asked in hub.asked if REPO in asked[1]} == {f"Bearer {TOKEN}"}
    assert all(f"/resolve/{COMMIT}/" in path for _, path, *_ in hub.asked if "/resolve/" in path)
    assert fetch(hub, tmp_path, text)["commit"] == COMMIT  # the hub is gone by now
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert kept == []


def test_without_a_token_none_is_sent(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text("hf_ofALoginOnThisHost")
    with serving(Hub(FILES)) as hub:
        fetch(hub, tmp_path, token="")
    assert {asked[3] for asked in hub.asked} == {""}


@pytest.mark.parametrize(
    ("hub", "text", "kind", "says"),
    [
        (
            Hub(FILES, refuse="gated"),
            REPO,
            "SourceRefused",
            f"not accepted for this token (open https://huggingface.co/{REPO}, accept the licence",
        ),
        (Hub(FILES, refuse="absent"), REPO, "SourceRefused", "no repository that HF_TOKEN may read"),
        (Hub(FILES), f"{REPO}@other", "SourceRefused", "got other, expected a branch, tag or commit"),
        (Hub(FILES, refuse="down"), REPO, "HubUnreachable", "it resumes where it broke off"),
        (Hub(FILES, listing_fails=True), REPO, "HubUnreachable", "got no whole"),
    ],
)
def test_a_refusal_is_named_and_leaves_no_pin(
    tmp_path: Path, hub: Hub, text: str, kind: str, says: str
) -> None:
    folder = folder_of(text, tmp_path)  # of an earlier try: huggingface_hub then settles for what is there
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(FILES["config.json"])
    with serving(hub):
        answer = fetch(hub, tmp_path, text)
    assert answer["kind"] == kind
    assert says in answer["says"]
    assert pin_of(folder_of(text, tmp_path)) == {}


def test_a_licence_that_is_not_accepted_is_known_before_a_byte_is_asked_for(tmp_path: Path) -> None:
    """Anybody may read about a gated repository; only its files are kept back."""
    with serving(Hub(FILES, refuse="gated")) as hub:
        assert fetch(hub, tmp_path)["kind"] == "SourceRefused"
    assert [path for _, path, *_ in hub.asked if "/resolve/" in path] == []


def test_a_file_that_is_short_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"123")
    assert Found(COMMIT, {"a": 3, "b": 3, "c": 3}).missing(tmp_path) == ["a", "c"]


def test_what_this_host_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(downloads, "look_up", lambda source: Found(COMMIT, {}))
    monkeypatch.setattr(downloads, "snapshot_download", full)
    with pytest.raises(HubUnreachable, match="got No space left on device"):
        downloads.fetch(HubSource(REPO, "main", tmp_path))


def test_a_broken_transfer_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    chunk = 10 << 20  # what huggingface_hub writes at a time, and so keeps of a broken transfer
    files = {**FILES, "model.safetensors": WEIGHTS * 24}
    with serving(Hub(files, break_after=chunk + 1000, breaks_left=2)) as hub:
        assert fetch(hub, tmp_path)["commit"] == COMMIT
    assert (folder_of(REPO, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS * 24
    begun = [asked[2] for asked in hub.asked if asked[0] == "GET" and "model.safetensors" in asked[1]]
    assert len(begun) == 3
    assert begun[0] in ("", "bytes=0-")
    assert [text.split("-")[0] for text in begun[1:]] == [f"bytes={chunk}", f"bytes={2 * chunk}"]


def test_a_whole_run_downloads_before_its_first_item_and_records_the_commit(tmp_path: Path) -> None:
    made = small_project.make(tmp_path)
    env = {"HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    args = ("--builds", "bf16", "--source", REPO)
    with serving(Hub(FILES)) as hub:
        status, output = small_project.run(made, *args, env={**env, "HF_ENDPOINT": hub.url})
    assert status == 0, output
    assert f"source: {REPO} at {COMMIT}" in output
    record = (made / "run/record.jsonl").read_text()
    header = json.loads(record.splitlines()[0])
    assert header["source_pin"] == {"repo": REPO, "revision": "main", "commit": COMMIT}
    assert header["source_hash"]
    assert TOKEN not in record + output


@pytest.mark.parametrize(("mood", "status"), [("gated", 11), ("down", 12)])
def test_a_run_whose_source_is_refused_runs_nothing(tmp_path: Path, mood: str, status: int) -> None:
    made = small_project.make(tmp_path)
    with serving(Hub(FILES, refuse=mood)) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
        got, output = small_project.run(made, "--builds", "bf16", "--source", REPO, env=env)
    assert got == status, output
    assert "passed" not in output
    assert TOKEN not in output
