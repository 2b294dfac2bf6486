"""`sfad install`: systemd units of this installation.

`service`  the daemon
`console`  the console, `sfactl web`
"""
