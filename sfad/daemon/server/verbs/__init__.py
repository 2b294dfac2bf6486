"""The verbs by subject. A function named like the verb answers the requests of that kind.

Importing this package loads each file, which registers its functions (see
`sfad.daemon.server.asker`).

`starting`   `spawn`; `recall`: what a run was started with
`steering`   `stop`, `pause`, `resume`, `limit`, `approve`, `deny`, `signal`, `send`, and which runs
             a command line means
`looking`    `list`, `info`, `calls`, `logs`, `result`, `summary` and the like: one answer from what
             is known
`following`  `watch`, `watch_runs`, `events`, `wait`: more answers as things happen
`use`        `report`, `reserve`, `settle`
`daemon`     the daemon itself: `status`, `plans`, `config`, `reload`, `agents`, `prune`
"""

from importlib import import_module
from pkgutil import iter_modules

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
