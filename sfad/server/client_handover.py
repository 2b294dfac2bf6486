"""Re-execution: the clients are handed to the program that this process becomes, which takes them over."""

from collections.abc import Iterator
from dataclasses import dataclass

import trio

from ..durable.handover import Clients
from ..protocol.messages import Events, Wait, Watch, WatchRuns
from ..protocol.types import ErrorCode
from .call import Call, Services, withdraw_calls
from .clients import ClientTable
from .connection import Connection
from .dispatch import Dispatcher
from .receiving import Receiver
from .verbs.watch import push


@dataclass(frozen=True, slots=True)
class ClientHandover:
    """Hands over every connection with its requests, and continues them after execve(2)."""

    services: Services
    clients: ClientTable
    receiver: Receiver
    dispatcher: Dispatcher

    def hand_over(self) -> Clients:
        """Return what `take_over` needs in the next program. Raises `OSError`."""
        now = trio.current_time()
        for connection in list(self.clients.by_fd.values()):
            if connection.peer.gateway:
                withdraw_calls(self.services.runtime, connection, None, why=None)
                self.clients.drop(connection)  # it connects again, and asks again what is not answered
            else:
                self._give_up(connection)
        answers = {
            token: [
                (asker.connection.number, asker.id) for asker in askers if isinstance(asker, Call) and not asker.connection.closed
            ]
            for token, askers in self.services.runtime.requests.askers().items()
        }
        connections = [connection.hand_over(now) for connection in self.clients.by_fd.values()]
        return Clients(connections, self.clients.last_number, answers)

    def _give_up(self, connection: Connection) -> None:
        """Fail the requests that another thread works on."""
        for request in sorted(connection.deferred):
            message = "the daemon restarted itself before this was done; try again"
            Call(self.services, connection, request, waits=True).fail(ErrorCode.UNAVAILABLE, message)
        connection.deferred.clear()

    def take_over(self, handed: Clients, last_token: int) -> None:
        """Take the connections over, and expect the core's answers to their requests. Call this before anything is answered."""
        numbered: dict[int, Connection] = {}
        for each in handed.connections:
            numbered[each.number] = connection = self.clients.take_over(each)
            if connection.bodies or connection.ended:
                self.receiver.turns.add(connection)
            if not connection.greeted or (connection.decoder.pending and not connection.bodies):
                self.clients.give_time(connection)
        askers = {
            token: [self.dispatcher.open(numbered[number], request) for number, request in waiting]
            for token, waiting in handed.answers.items()
        }
        self.services.runtime.requests.restore(askers, last_token=last_token)

    def continue_watching(self, handed: Clients) -> None:
        """Push events to the clients that watch runs."""
        for connection, request in self._pending(handed):
            if isinstance(request, Watch):
                push(Call(self.services, connection, request.id), request.run, calls=request.calls)

    def continue_waiting(self, handed: Clients) -> None:
        """Continue the requests that wait for runs, once the core knows the runs."""
        for connection, request in self._pending(handed):
            if not isinstance(request, Watch):
                self.dispatcher.handle(connection, request)

    def _pending(self, handed: Clients) -> Iterator[tuple[Connection, Wait | Watch | WatchRuns | Events]]:
        for each in handed.connections:
            connection = self.clients.by_fd.get(each.fd)
            if connection is not None:
                yield from ((connection, request) for request in each.pending)
