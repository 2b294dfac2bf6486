"""A run's output: the files it writes itself, and the form of it that is safe for a language model.

`files`     two files a run, opened for the run and for readers
`holes`     freeing the oldest bytes of a file, and reading one whose oldest are being freed
`inotify`    who has written, from the kernel
`sanitise`  pure: bytes an agent printed → text that neither a terminal nor a model mistakes for anything but data
"""

from .files import OutputStore
from .inotify import Inotify
from .sanitise import SafeText, cut_oldest, sanitise, wrap_result

__all__ = ["Inotify", "OutputStore", "SafeText", "cut_oldest", "sanitise", "wrap_result"]
