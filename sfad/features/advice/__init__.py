"""Limits that past runs suggest (docs/limits.md): `sfactl recommend` tells them, and with
`limits.adaptive` new runs have them.

`feature`  the declaration
`messages` the request of `sfactl recommend`
`learning` what the ledger teaches about each kind
`adviser`  when that is read, and what the core is told of it
`part`     what of this a daemon does
"""
