"""Which broker a command talks to, as its help says and as it accepts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rayka.cli.exits import CliError
from rayka.cli.main import rayka


def test_help_offers_bootstrap_server_only_to_commands_that_take_it() -> None:
    assert "--bootstrap-server" in CliRunner().invoke(rayka, ["topics", "list", "--help"]).output
    assert "--bootstrap-server" not in CliRunner().invoke(rayka, ["status", "--help"]).output


def test_status_refuses_bootstrap_server_and_says_what_to_use() -> None:
    with pytest.raises(CliError, match="give --data-dir or --address"):
        rayka.main(["status", "--bootstrap-server", "127.0.0.1:1"], standalone_mode=False)
