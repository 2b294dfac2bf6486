"""The Unix socket: who connects, what they say, and how much of it the daemon keeps.

`server`      one task for all connections over a nested epoll
`listening`   the listening socket
`clients`     which clients are let in, what each makes the daemon keep, and which are dropped
`connection`  one client: frames in, frames out, descriptors both ways
`peers`       the process at the other end, from the kernel
`submitters`  the user that a client's run executes as
`shares`      how much of the daemon each run, tree and user may take
`receiving`   what clients send: frames, and the requests in them, handled in turns
`dispatch`    a request to the function that answers it, if the peer may use the verb
`call`        one request while it is being answered; the registry of those functions
`verbs`       one file a verb
`lookup`      which run an id, a name or a prefix means
`encoded`     replies with runs that are encoded already, and requests that share one
`checks`      how a request fails, and checks of fields that several kinds of request have
`results`     the result of a run, from its output
`transcripts` a run's events and output in one text
`client_handover` the clients before and after a re-execution
"""
