"""The Unix socket: who connects, what they say, and how much of it the daemon is willing to hold.

`server`      one task for all connections over a nested epoll
`connection`  one client: frames in, frames out, descriptors both ways
`verbs`       one handler a verb
"""
