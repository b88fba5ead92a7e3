"""pytest plugin: before the first item, the preflight of a machine with a docker engine, then the sources' download.

A host that is not ready gets one list, and the run ends with status 11, or 12 where a retry may find it well.
"""

import pytest

from quantkit.errors import QuantkitError
from tests.support.host.facts import Host, Wanted, facts_of
from tests.support.host.preflight import BROKEN, INFRASTRUCTURE, exit_status, faults, listed
from tests.support.plugins.options import SETTINGS, WHOLE, demanded, records
from tests.support.plugins.recording import suite_of
from tests.support.saying import say
from tests.support.sources.source import HubSource, HubUnreachable, hub_source
from tests.support.sources.sourcehash import source_hash

HOST = pytest.StashKey[type[Host]]()  # tests put a fake here


def hub_sources(config: pytest.Config) -> list[HubSource]:
    """The sources of this run that come from the hub."""
    folder = config.stash[SETTINGS].checkpoints
    texts = [config.getoption("source"), config.getoption("bf16_source")]
    return [source for text in texts if text and (source := hub_source(text, folder))]


def wanted(config: pytest.Config) -> Wanted:
    """What this run will put on the disk."""
    settings = config.stash[SETTINGS]
    made = settings.checkpoints / source_hash(settings.source)[:16]
    ours = [build.name for build in settings.builds if build.name not in settings.found]
    missing = [name for name in ours if not (made / name / WHOLE).exists()]
    here = sum(path.stat().st_size for path in settings.source.glob("*.safetensors"))
    downloads = tuple(source for source in hub_sources(config) if not source.whole)
    return Wanted(settings.checkpoints, len(missing), here, downloads)


def preflight(config: pytest.Config) -> None:
    """Stop the run where the host is not ready, with the list of what to fix."""
    settings = config.stash[SETTINGS]
    host = config.stash.get(HOST, Host)(settings.machine, settings.image)
    found = faults(settings.machine, settings.image, facts_of(host, wanted(config)))
    if found:
        pytest.exit(listed(settings.machine, found), returncode=exit_status(found))
    say(config, f"preflight: {settings.machine.name} is ready")


def download(config: pytest.Config) -> None:
    """Fetch the sources that come from the hub, or stop the run with the reason."""
    for source in hub_sources(config):
        from tests.support.sources.hub import fetch  # needs huggingface_hub, which local sources do not

        try:
            pin = fetch(source)
        except QuantkitError as why:
            status = INFRASTRUCTURE if isinstance(why, HubUnreachable) else BROKEN
            pytest.exit(str(why), returncode=status)
        say(config, f"source: {pin['repo']} at {pin['commit']}, in {source.folder}")


def concerned(session: pytest.Session) -> bool:
    """Whether this process leads a run that has items of a suite; with xdist, where -m demands a machine."""
    config = session.config
    if hasattr(config, "workerinput"):
        return False
    if getattr(config.option, "numprocesses", None):
        return demanded(config.getoption("markexpr"), records(config)) is not None
    return any(suite_of(item) for item in session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Ask once, before any item."""
    config = session.config
    if config.option.collectonly or not concerned(session):
        return
    if config.stash[SETTINGS].machine.engine == "docker":
        preflight(config)
    download(config)
