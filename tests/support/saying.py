"""How a plugin says a line to whoever watches the run. Knows nothing else."""

import pytest


def say(config: pytest.Config, *lines: str) -> None:
    """Whole lines on the terminal, where there is one."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        reporter.ensure_newline()
        for line in lines:
            reporter.write_line(line)
