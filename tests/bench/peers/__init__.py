"""Other supervisors, each through its fastest client. Those take part that are installed."""

from tests.bench.peers.circus import Circus
from tests.bench.peers.peer import GRACE, Argv, Load, Peer, Requests, Runs
from tests.bench.peers.pm2 import Pm2
from tests.bench.peers.queues import Nq, Tsp
from tests.bench.peers.services import S6, Runit
from tests.bench.peers.supervisord import Supervisord

__all__ = ["GRACE", "PEERS", "Argv", "Load", "Peer", "Requests", "Runs"]

PEERS: tuple[type[Peer], ...] = (Runit, S6, Tsp, Nq, Supervisord, Circus, Pm2)
