"""The Unix socket: who connects, what they say, and how much of it the daemon keeps.

`server`      one task for all connections over a nested epoll; the listening socket; clients before
              and after a re-execution
`clients`     which clients are let in, what each makes the daemon keep, and which are dropped
`connection`  one client: frames in, frames out, descriptors both ways; replies that are encoded
              already
`peers`       the process at the other end, from the kernel, and the user that its runs execute as
`shares`      how much of the daemon each run, tree and user may take
`dispatch`    what clients send: frames, and each request in them to the function that answers it,
              if the peer may use the verb
`asker`       who waits for the answer to a request; the registry of those functions
`lost_runs`   continues, at the daemon's start, what the end of the daemon or the machine has ended
`verbs`       what answers each kind of request
`checks`      checks of fields that several kinds of request have
`results`     the result and the transcript of a run, from its output
"""
