"""The console, `sfactl web`: the runs in a browser. Only that verb imports this package, which
needs the extra `web`.

`options`       the options of the verb, and the values of their texts
`access`        who may ask: one-time links, cookies, tokens, Host and Origin
`logins`        links and logged-in browsers, as files that outlive a console
`addresses`     links for other devices
`serving`       the addresses, whose connections are accepted, TLS, and the server's life
`pages`         the pages, what they read, and what they ask for
`actions`       what a page may change
`stream`        server-sent events
`feed`          the runs as they change, for all open pages
`tail`          the output of a run as it grows
`terminal`      what its terminal shows, and what is typed there
`source`        what the pages ask: a daemon, or the daemons of all nodes
`views`         what a page is told of runs and events
"""
