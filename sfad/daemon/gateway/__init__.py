"""The gateways' processes, as the daemon has them.

`process`          starts and watches a gateway
`gateways`         the gateways of all users, and which of them leads where
`connection_watch` model calls that a run makes itself, past the gateways
"""
