"""The console, `sfactl web`: the runs in a browser. Only that verb imports this package, which needs the extra `web`.

`peers`         which user has a connection; a listener for one's own connections
`access`        who may ask: one-time links, cookies, tokens, Host and Origin
`serving`       the addresses, TLS, and the server's life
`pages`         the pages, what they read, and what they ask for
`actions`       what a page may change
`stream`        server-sent events
`feed`          the runs as they change, for all open pages
`tail`          the output of a run as it grows
`source`        what the pages ask: a daemon
`nodes`         what the pages ask with --fleet: the daemons of all nodes
`views`         what a page is told of runs and events
`static_files`  the files of `static/`: stylesheet, scripts and icons; uPlot with its licence
"""
