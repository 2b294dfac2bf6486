"""A run's output: the files that it writes itself, and a form of it that is safe for a language model.

`files`      two files for each run, opened for the run and for readers
`holes`      frees the oldest bytes of a file, and reads a file whose oldest bytes are being freed
`times`      when a run's output was written, beside its files
`inotify`    which files were written to, renamed or deleted, from the kernel
`deletion`   deletes the output of runs that ended long ago
"""

from .files import OutputFiles
from .inotify import Inotify

__all__ = ["Inotify", "OutputFiles"]
