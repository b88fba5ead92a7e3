"""Every build is launched alike, what the user adds reaches the engine, and one run at a time has the card."""

import json
import os
import shutil
import socket
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quantkit.formats import FORMATS
from quantkit.machines import Machine, machine_named
from tests.nano import NANO
from tests.support.engine.base import CardTaken
from tests.support.engine.process import clean_environment, free_port
from tests.support.engine.reaping import lock_folder
from tests.support.plugins.serving import KV_POOL, MULTIMODAL_ARGS, card_of, launch_for, one_run
from tests.support.settings import Boot, Settings

CPU = machine_named("cpu")
A_IS_B = {"A": "b"}


def settings(
    machine: Machine = CPU, args: tuple[str, ...] = (), gate: str = "off", env: Mapping[str, str] = A_IS_B
) -> Settings:
    """The settings that a launch is made from."""
    found = SimpleNamespace(
        machine=machine, run=Path("/run"), engine_args=args, engine_env=env, image="", gate=gate
    )
    return cast(Settings, found)


@pytest.fixture
def text_only(tmp_path: Path) -> Path:
    """The nano with a flat config, as builds have it."""
    config = json.loads((NANO / "config.json").read_text())["text_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(NANO / "model.safetensors", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["cpu", "mi300x", "h200"])
def test_all_builds_alike(name: str, text_only: Path) -> None:
    """Launches of two builds differ in their names alone."""
    machine = machine_named(name)
    one, two = (
        launch_for(Boot(FORMATS[build]), text_only, settings(machine)) for build in ("bf16", "w8a8emb4")
    )
    assert one.args == two.args
    assert one.env == two.env
    assert replace(one, name="", model="", log=Path()) == replace(two, name="", model="", log=Path())
    assert one.model != two.model
    assert "--quantization" not in one.args
    assert MULTIMODAL_ARGS[0] not in one.args


def test_second_start_has_its_own_log(text_only: Path) -> None:
    """The log of bf16's first start is not overwritten by its second."""
    first, second = (launch_for(Boot(FORMATS["bf16"], nth), text_only, settings()) for nth in (1, 2))
    assert first.log != second.log
    assert first.args == second.args


def test_users_arguments_come_last(text_only: Path) -> None:
    """What the user adds reaches the engine, where it overrides ours."""
    launch = launch_for(Boot(FORMATS["fp8"]), text_only, settings(args=("--max-model-len", "1024")))
    assert launch.args[-2:] == ("--max-model-len", "1024")
    assert launch.env["A"] == "b"
    own = launch_for(Boot(FORMATS["fp8"]), text_only, settings(env={KV_POOL: "9"}))
    assert own.env[KV_POOL] == "9"


def test_two_servers_fit_on_one_card(text_only: Path) -> None:
    """With --gate ab each takes less than half of the card, and the last word is the engine's."""
    card, boot = machine_named("mi300x"), Boot(FORMATS["fp8"])
    for gate, share in (("baseline", 0.9), ("ab", 0.45)):
        args = launch_for(boot, text_only, settings(card, gate=gate)).args
        given = [value for name, value in pairwise(args) if name == "--gpu-memory-utilization"]
        assert float(given[-1]) == share
    both = [launch_for(boot, text_only, settings(gate=gate)).args for gate in ("baseline", "ab")]
    assert both[0] == both[1]  # a laptop's pool has a size, not a share


def test_what_the_user_adds_is_in_the_comparison_key() -> None:
    """Runs with other arguments or variables are not comparable."""

    def key(**given: Any) -> dict[str, Any]:
        same = {"machine": CPU, "grid": "smoke", "rows": (1,), "image": "", "bf16_source": None, "found": ()}
        return dict(cast(Any, Settings.key).fget(SimpleNamespace(**same, **given)))

    plain = key(engine_args=(), engine_env={})
    assert key(engine_args=("--x",), engine_env={}) == {**plain, "engine_args": ["--x"]}
    assert key(engine_args=(), engine_env={"A": "b"}) == {**plain, "engine_env": {"A": "b"}}


def test_towers_are_limited() -> None:
    """A checkpoint with towers is the one declared exception: no images, no audio."""
    launch = launch_for(Boot(FORMATS["bf16"]), NANO, settings())
    assert launch.args[-2:] == MULTIMODAL_ARGS
    assert launch_for(Boot(FORMATS["bf16"]), NANO, settings(args=("--x",))).args[-1] == "--x"


def test_a_card_is_its_devices() -> None:
    """Two records of one card share its lock, whatever they are called; a laptop is one card."""
    card = machine_named("mi300x")
    assert card_of(card) == card_of(replace(card, name="mine", devices=card.devices[::-1]))
    assert len({card_of(machine_named(name)) for name in ("cpu", "mi300x", "h200")}) == 3
    assert "/" not in card_of(card)
    assert card_of(CPU) == "cpu"


def test_one_run_a_card() -> None:
    """A second run gives up with a sentence, and gets the card when the first is through."""
    with (
        one_run("a-card-of-this-test"),
        pytest.raises(CardTaken, match="another run's"),
        one_run("a-card-of-this-test", seconds=0.1),
    ):
        pass
    with one_run("a-card-of-this-test", seconds=0.1):
        pass


def as_nobody(card: str) -> str:
    """What another user, whose temporary files lie elsewhere, gets when asking for the card."""
    os.environ["TMPDIR"] = "/var/tmp"
    os.setuid(65534)
    try:
        with one_run(card, seconds=0.1):
            return "the card"
    except (CardTaken, OSError) as wrong:
        return type(wrong).__name__


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user too")
def test_one_run_a_card_whoever_runs() -> None:
    """All users of a machine share its locks."""
    card = f"a-card-of-everybody-{os.getpid()}"
    try:
        for wanted in ("CardTaken", "the card"):
            held = one_run(card) if wanted == "CardTaken" else nullcontext()
            with held, ProcessPoolExecutor(1, get_context("spawn")) as another:
                assert another.submit(as_nobody, card).result() == wanted
    finally:
        (lock_folder() / f"{card}.lock").unlink()


def test_no_secret_reaches_the_server() -> None:
    """Tokens of this shell are not the server's business."""
    secrets = ("HF_TOKEN", "hf_token", "MY_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD",
               "GOOGLE_APPLICATION_CREDENTIALS")  # fmt: skip
    others = ("PATH", "HOME", "TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS")
    shell = {**dict.fromkeys((*secrets, *others), "x"), "HF_HUB_OFFLINE": "0"}
    clean = clean_environment(shell, {})
    assert set(shell) & set(clean) == {*others, "HF_HUB_OFFLINE"}
    assert (clean["HF_HUB_OFFLINE"], clean["DO_NOT_TRACK"]) == ("1", "1")  # nor is the world told of it
    assert clean_environment(shell, {"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"


def test_a_free_port_is_one_that_nobody_has() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        assert free_port() != taken.getsockname()[1]
