"""What runs use, as the shell learns it, in the core's terms.

    output files ─▶ tail, stream ─▶ meters ─▶ ┐
    session files ─▶ sessions, session ──────▶┤
    reports, reservations ────────────────────┼▶ run, uses ─▶ the core's events
    launcher ─▶ sampling ────────────────────▶┘

`metering`    the interface that the loop calls: `Metering`
`run`         what the sources tell of one run, turned into events
`uses`        readings, reports and reservations with their price, as the core counts them
`tail`        follows the output files of all runs
`tailed`      the output files of one run, and its meter
`stream`      reads the stdout of one run through its meters
`bounds`      frees the oldest bytes of output files
`sessions`    reads the session files of all runs, in threads
`session`     reads the session files of one attempt
`finding`     finds session files
`sampling`    looks at memory and processes
`pricelist`   the prices in force, loaded when they are needed
`pricing`     what tokens cost, from the config and the library genai-prices
"""
