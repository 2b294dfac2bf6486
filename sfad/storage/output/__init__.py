"""A run's output: the files that it writes itself.

`files`      two files for each run, opened for the run and for readers, and deleted when the run
             ended long ago; inotify(7)
`holes`      frees the oldest bytes of a file, and reads a file whose oldest bytes are being freed
`truncated`  keeps what a run had written before it truncated its own file
`reopened`   looks at a file before a process opens, and perhaps truncates, it again
`times`      when lines were written
"""

from .files import Inotify, OutputFiles

__all__ = ["Inotify", "OutputFiles"]
