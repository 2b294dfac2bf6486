"""Calls of tools that a person allows or denies, one at a time, from anywhere (docs/approvals.md).

`feature`   the declaration
`messages`  the requests of an agent program that asks, and of the person who answers
`part`      what of this a daemon does: it keeps what is asked until it is answered
"""
