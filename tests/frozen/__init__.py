"""Bytes of each release, which later ones must load.

A directory for each minor version, such as `1.0/`:

`frames.jsonl`   a frame of each request and reply, in hex, and what it says
`ledger.db.gz`   a ledger, and `ledger.json`, what it says
`spool.tar.gz`   the spool of a daemon that was killed with live runs
`names.json`     words that clients know: exit codes, types of events, metrics, variables, …
`*.toml`         configs with each key
`schema.json`    docs/json.schema.json

`written`   writes them: `python -m tests.frozen`
`sample`    a value of any type
"""
