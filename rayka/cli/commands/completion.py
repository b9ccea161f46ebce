"""`rayka completion`: the script with which a shell completes commands, options, topics and groups."""

from __future__ import annotations

import click

from rayka.cli.exits import Exit
from rayka.cli.parsing import Command

EXAMPLES = """\
examples:
  eval "$(rayka completion bash)"              in ~/.bashrc
  eval "$(rayka completion zsh)"               in ~/.zshrc
  rayka completion fish | source               in ~/.config/fish/config.fish
"""


@click.command("completion", cls=Command, epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> Exit:
    """Print the script that completes commands in your shell."""
    from click.shell_completion import get_completion_class

    from rayka.cli.main import COMPLETE, PROGRAM

    completion = get_completion_class(shell)
    assert completion is not None
    print(completion(ctx.find_root().command, {}, PROGRAM, COMPLETE).source())
    return Exit.DONE
