"""Where agent programs take the address of their model and their login from, and how each is led through the gateway.

`setup`      what is found out about a program
`variables`  variables that any program may obey
`aider`, `claude`, `codex`, `gemini`, `opencode`  one file for each program that needs more
`network`    proxies and certificates
`files`      settings in files
`tree`       what is known of a tree
`reader`     reads all of it when a person starts a root; it is kept with the tree
"""

from .setup import Setup as Setup
from .setup import Surroundings as Surroundings
from .setup import TreeUpstream as TreeUpstream
from .tree import NO_SETUPS as NO_SETUPS
from .tree import TreeSetups as TreeSetups
from .tree import tree_setups as tree_setups
