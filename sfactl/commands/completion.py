"""Print the completion script of a shell.

The script completes verbs, options, runs, names, labels, types, statuses, meters and agents. It asks the daemon, and completes
less if none is running.

  bash: eval "$(sfactl completion bash)", in ~/.bashrc

  zsh: eval "$(sfactl completion zsh)", in ~/.zshrc after compinit

  fish: sfactl completion fish > ~/.config/fish/completions/sfactl.fish
"""

import os

from ..exits import UsageError
from ..options import COMMON, Argument, Parameter

SHELLS = ("bash", "zsh", "fish")
PARAMETERS: tuple[Parameter, ...] = (*COMMON, Argument("shell", "SHELL", "bash, zsh or fish", complete="shell"))


def main(*, shell: str, socket: str | None = None, json: bool = False) -> int:
    del socket, json
    if shell not in SHELLS:
        raise UsageError(f"unknown shell {shell!r}; choose from: {', '.join(SHELLS)}")
    from ..typer_app import build

    # typer prints the script if this variable asks for it.
    os.environ["_SFACTL_COMPLETE"] = f"source_{shell}"
    build(None, lambda _verb, _values: 0, completing=True)(args=[], prog_name="sfactl")
    return 0
