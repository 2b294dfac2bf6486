"""What runs use, as the shell learns it, in the core's terms.

    output files ─▶ tail, stream ─▶ meters ─▶ ┐
    session files ─▶ sessions ───────────────▶┤
    reports, reservations ────────────────────┼▶ run ─▶ the core's events
    launcher ─▶ sampling ────────────────────▶┘

`metering`    the interface that the loop calls: `Metering`
`run`         what the sources tell of one run, with its price, as the core counts it
`tail`        follows the output files of all runs, and frees their oldest bytes
`tailed`      the output files of one run, and its meter
`stream`      reads the stdout of one run through its meters
`sessions`    finds and reads the session files of runs, in threads
`sampling`    looks at memory and processes
`pricing`     what tokens cost, from the config and the library genai-prices, which is loaded when it is needed
"""
