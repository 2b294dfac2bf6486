"""All requests and replies. `requests` declares them by subject, for programs that need few.
docs/protocol.md is made from them.

A connection begins with `Hello`, answered by `Welcome`. After that each request has an `id` that
the client chose, and its reply has the same one. Replies may come in another order than their
requests, because `Wait` takes as long as the run. Requests with unknown fields are refused, because
a typo must not become a silent default. Replies and events may have them, so that an older client
can read a newer daemon.

`descriptors` in a message says how many file descriptors travel with its first byte as SCM_RIGHTS.
"""

from .framing import pack as pack
from .framing import reader
from .framing import tag as tag
from .requests.base import *
from .requests.base import Request
from .requests.daemon import *
from .requests.following import *
from .requests.gateway import *
from .requests.listing import *
from .requests.records import *
from .requests.starting import *
from .requests.steering import *
from .requests.summary import *
from .requests.use import *
from .requests.windows import *

unpack_request = reader(Request)
"""Return the request in a frame's body. Raise `BadMessage`."""
