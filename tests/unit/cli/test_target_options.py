"""Which broker a command talks to, as its help says and as it accepts."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rayka.cli.exits import CliError, Exit
from rayka.cli.main import main, rayka
from rayka.client.kafka.cluster import addresses


def test_help_offers_bootstrap_server_only_to_commands_that_take_it() -> None:
    assert "--bootstrap-server" in CliRunner().invoke(rayka, ["topics", "list", "--help"]).output
    assert "--bootstrap-server" not in CliRunner().invoke(rayka, ["status", "--help"]).output


@pytest.mark.parametrize("group", ["topics", "configs", "groups", "share-groups", "transactions", "log"])
def test_help_lists_commands_with_whole_sentences(group: str) -> None:
    commands = CliRunner().invoke(rayka, [group, "--help"]).output.partition("Commands:\n")[2].partition("\n\n")[0]
    assert commands.endswith(".")
    assert "..." not in commands


@pytest.mark.parametrize(
    "text", ["localhost", "", "localhost:", ":9092", "localhost:0", "localhost:65536", "h:1,h:x", "h:²"]
)
def test_an_address_without_a_valid_port_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--bootstrap-server", text]) == Exit.USAGE
    error = capsys.readouterr().err
    assert error.startswith("rayka: --bootstrap-server '")
    assert error.endswith("' is not of the form HOST:PORT, with a port from 1 to 65535\n")


def test_servers_are_tried_in_turn() -> None:
    assert addresses("a:1, [::1]:9092") == [("a", 1), ("::1", 9092)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topic"], "No such command 'topic'. Did you mean 'topics'? (see `rayka --help`)"),
        (["topics", "lst"], "No such command 'lst'. Did you mean 'list'? (see `rayka topics --help`)"),
        (["xyzzy"], "No such command 'xyzzy'. (see `rayka --help`)"),
        (["completion"], "Choose from: bash, zsh, fish (see `rayka completion --help`)"),
    ],
)
def test_wrong_words_are_explained_on_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == Exit.USAGE
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_status_refuses_bootstrap_server_and_says_what_to_use() -> None:
    with pytest.raises(CliError, match="give --data-dir or --address"):
        rayka.main(["status", "--bootstrap-server", "127.0.0.1:1"], standalone_mode=False)
