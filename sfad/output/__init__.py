"""A run's output: the files it writes itself, and the form of it that is safe for a language model.

`files`     two files a run, opened for the run and for readers
`sanitise`  pure: bytes an agent printed → text that neither a terminal nor a model mistakes for anything but data
"""

from .files import OutputStore
from .sanitise import SafeText, cut_oldest, sanitise, wrap_result

__all__ = ["OutputStore", "SafeText", "cut_oldest", "sanitise", "wrap_result"]
