"""The messages by subject: requests, and the replies to them. `sfactl` imports those of one verb.

`base`        what every message has; the handshake, and the replies that many requests have
`starting`    starting a run, and registered agents
`steering`    stopping runs, pausing them, changing their limits, writing to them
`use`         what runs use: reports and reservations
`summary`     how runs ended and what they used
`listing`     runs as they are shown
`following`   a run's end, events and output as they come
`records`     what is kept of runs: results, events, model calls
`daemon`      the daemon itself
`gateway`     model calls, as what they pass through asks and tells of them
`windows`     windows of accounts that are paid by the month
"""
