"""A run's output: the files that it writes itself.

`files`      two files for each run, opened for the run and for readers, and deleted when the run ended long ago
`holes`      frees the oldest bytes of a file, and reads a file whose oldest bytes are being freed
`inotify`    which files were written to, renamed or deleted, from the kernel
`times`      when lines were written
"""

from .files import OutputFiles
from .inotify import Inotify

__all__ = ["Inotify", "OutputFiles"]
