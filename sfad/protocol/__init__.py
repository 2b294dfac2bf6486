"""What client and daemon say to each other. Imports msgspec and the standard library only, so that `sfactl` stays light.

`types`       the nouns: a run as it is shown, limits, refusals, reasons, error codes
`kinds`       the table of the kinds of limit: unit, range, default, who counts it
`limits`      limits as people write them, and as they are shown
`units`       durations, sizes, counts and money as people write them, and as they are shown
`known`       agent programs, meters and profiles that are built in
`messages`    one Struct a request and a reply, tagged by `type`
`event_types` the types of events, and patterns of them
`framing`     4-byte big-endian length + msgpack, a pure decoder used by both sides, and the versions of the protocol
`sanitise`    an agent's bytes as text that a terminal and a model take for nothing but data
`redaction`   what looks like a secret, hidden in texts
`statistics`  the answers to `recommend` and `summary`
`paths`       where the socket and the state are

The same in words, with byte-exact examples: docs/protocol.md.
"""
