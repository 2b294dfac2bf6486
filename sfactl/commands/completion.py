from typing import Annotated

from ..app import app
from ..options.completion_scripts import SCRIPTS
from ..options.shared import Json, Socket, Value, one_of


@app.command()
def completion(
    shell: Annotated[
        str, Value("SHELL", one_of(SCRIPTS, "shell"), words="shell").argument("bash, zsh or fish")
    ],
    socket: Socket = None,
    json: Json = False,
) -> int:
    """Print the completion script of a shell.

    The script completes verbs, options, runs, names, labels, types, statuses, meters and
    agents. It asks the daemon, and completes less if none is running.

      bash: eval "$(sfactl completion bash)", in ~/.bashrc

      zsh: eval "$(sfactl completion zsh)", in ~/.zshrc after compinit

      fish: sfactl completion fish > ~/.config/fish/completions/sfactl.fish
    """
    del socket, json
    print(SCRIPTS[shell].strip())
    return 0
