"""The Unix socket: who connects, what they say, and how much of it the daemon is willing to hold.

`server`      one task for all connections over a nested epoll
`listening`   the listening socket
`connection`  one client: frames in, frames out, descriptors both ways
`peers`       the process at the other end, from the kernel
`turns`       which client's requests are handled next
`shares`      how much of the daemon each run, tree and user may hold
`dispatch`    a request to the function that answers it, if the peer may use the verb
`call`        one request while it is being answered; the registry of those functions
`verbs`       one file a verb
`handles`     which run an id, a name or a prefix means
`checks`      how a request fails, and checks of fields that several kinds of request have
`reading`     what runs left: the final answer of a run, the page of a summary
"""
