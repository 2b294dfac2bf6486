"""`sfad` with shorter time-outs. A re-execution makes it `sfad`.

It looks ten times a second, not every five seconds, whether its files are where they were. It waits
one second, not ten, for the rest of a frame, for a client that lost its connection, and for one
that does not read of runs.
"""

from sfad.host.linux import displacement

displacement.LOOK = 0.1

from sfad.__main__ import main  # noqa: E402
from sfad.core.life import stopping  # noqa: E402
from sfad.daemon.server import clients  # noqa: E402
from sfad.daemon.server.verbs import following  # noqa: E402

stopping.RECONNECT = 1.0
clients.FRAME_TIME = 1.0
following.STALLED = 1.0

if __name__ == "__main__":
    main()
