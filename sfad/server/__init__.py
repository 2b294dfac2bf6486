"""The Unix socket: who connects, what they say, and how much of it the daemon is willing to hold.

`server`      one task for all connections over a nested epoll
`shares`      how much each run, tree and user may hold
`peers`       the process at the other end, from the kernel
`connection`  one client: frames in, frames out, descriptors both ways
`verbs`       one handler a verb
`handles`     which run an id, a name, a prefix or a label means
`result`      the final answer of a run
"""
