"""What runs use, as the shell learns it, in the core's terms.

    output files ─▶ tail ─▶ stdout ─────────▶ ┐
    session files ─▶ sessions ───────────────▶┤
    reports, reservations ─▶ metering ───────▶┼▶ metered_run ─▶ the core's events
    launcher ─▶ sampling ────────────────────▶┘

`metering`        the interface that the loop calls: `Metering`; prices what agents report and
                  reserve, and calls of the gateway
`metered_run`     what sources tell of the use of one run, told to the core and, where it is not
                  known in full, to people
`tail`            follows the output files of all runs, and frees their oldest bytes
`tailed_run`      the output files of one run, and its meter; what it writes on its stderr
`stdout`          the meters of one run: one for each attempt, fed with its stdout
`resumable`       finds out whether the session of an ended run is where its program can continue it
`sessions`        has the sessions of all runs read, in threads, and finds out which is whose
`session_files`   finds and reads session files
`session_database`  reads sessions in a database
`sampling`        looks at memory and processes, and tells the core
`silence`         looks for runs that give no sign of life
`pricing`         what tokens cost, from the config and the library genai-prices
"""
