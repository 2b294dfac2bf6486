"""The command `sfad`.

Serving reads its options without typer, which with `cli` takes 14 ms of the 325 of a start, and 1.5
MiB of 43 for as long as the daemon lives.
"""

import gc
import sys
from typing import Any

from .host.headroom import raise_priority
from .host.secrecy import hide_memory
from .protocol.inherited import repair_process

# until start-up is done and its objects are frozen: collections take a sixth of a start
gc.disable()

_OPTIONS = {
    "--socket": ("socket", str),
    "--state-dir": ("state_dir", str),
    "--config": ("config", str),
    "--ready-fd": ("ready_fd", int),
}


def main() -> None:
    repair_process()
    options = plain_options(sys.argv[1:])
    if options is not None:
        hide_memory()  # before the imports: the environment may have keys
        # first: the imports take 0.4 s of processor time, which is ten seconds if runs keep all
        # processors busy
        raise_priority()
        from .daemon.serving import serve

        serve(**options)
        return
    from .cli import app

    app(prog_name="sfad")


def plain_options(arguments: list[str]) -> dict[str, Any] | None:
    """Return the options of `serve` if there is nothing else, each once and with a value; else
    `None`, and typer reads them."""
    words = arguments[1:] if arguments[:1] == ["serve"] else arguments
    names, values = words[::2], words[1::2]
    once = len(names) == len(values) == len(set(names))
    if (
        not once
        or not _OPTIONS.keys() >= set(names)
        or any(value.startswith("-") for value in values)
    ):
        return None
    try:
        return {
            _OPTIONS[name][0]: _OPTIONS[name][1](value)
            for name, value in zip(names, values, strict=True)
        }
    except ValueError:
        return None


if __name__ == "__main__":
    main()
