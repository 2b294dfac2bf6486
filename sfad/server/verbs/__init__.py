"""One file a verb, named like the verb: the function in it answers the requests of that kind.

Importing this package loads each file, which registers its function (see `sfad.server.call`).
"""

from importlib import import_module
from pkgutil import iter_modules

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
