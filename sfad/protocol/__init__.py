"""What client and daemon say to each other. Imports msgspec and the standard library only.

`types`       the nouns: a run as it is shown, limits, refusals, reasons, error codes
`kinds`       the table of the kinds of limit: unit, range, default, who counts it
`holds`       the table of the kinds of hold: what ends each, and how people are told of it
`limits`      limits as people write them, and as they are shown
`checks`      checks of runs, as people and agents are told of them
`limits_object` limits as programs write them: one JSON object
`texts`       texts that people write and read: units, hosts, what is hidden or made harmless
`known`       agent programs, meters and profiles that are built in
`messages`    all requests and replies: a struct each, tagged by `type`
`requests`    the same by subject
`encoding`    values as JSON, by msgspec
`event_types` the types of events, and patterns of them
`errors`      how a request fails, and checks of fields that many requests have
`framing`     4-byte big-endian length + msgpack, a pure decoder used by both sides, the
              messages in frames, and the versions of the protocol
`conversation` a client's end of a connection
`paths`       where the socket and the state are
`stand_ins`   files that stand in for agent programs
`inherited`   what a parent may leave to both programs, repaired

The same in words, with byte-exact examples: docs/protocol.md.
"""
