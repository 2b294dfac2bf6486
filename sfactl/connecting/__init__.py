"""Connections to the daemon.

`connection`    handshake, requests, descriptors, reconnecting
`in_flight`     several requests on one connection, repeated after a death of the daemon; one poll
                over all that a run tells
`start_daemon`  connects, and starts a daemon if none is running: by systemd or by fork
`history`       connects, or reads the ledger if no daemon is running
`fleet`         connections on which the daemon answers for its fleet, and who has not answered
`over_fleet`    what asks for that
`trust`         whether to trust the process at the other end
`inside`        whether this process is inside a run
`bounded`       a bound on the time of what has none
`signals`       lets a signal end a wait whenever it comes
"""
