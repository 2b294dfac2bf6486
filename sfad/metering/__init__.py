"""What runs use, as the shell learns it, in the core's terms.

    output files ─▶ tail ─▶ stdout_meter ───▶ ┐
    session files ─▶ session, sessions ──────▶┤
    reports, reservations ─▶ report_pricing ─▶┼▶ metered_run ─▶ the core's events
    launcher ─▶ sampling ────────────────────▶┘

`metering`        the interface that the loop calls: `Metering`
`metered_run`     what meters read of one run, told to the core
`notices`         what people are told of a run whose use is not known in full
`report_pricing`  what agents report and reserve, with its price
`use`             what readings, reports and reservations amount to, with their price
`tail`            follows the output files of all runs
`tailed_run`      the output files of one run, and its meter
`stdout_meter`    the meters of one run: one for each attempt, fed with its stdout
`stdout_file`     reads the file of a run's stdout, whatever happens to it
`milestones`      what a run writes on its stderr about its progress
`last_line`       the last line on a run's stderr, for the reason of its failure
`bounding`        frees the oldest bytes of output files
`sessions`        has the session files of all runs read, in threads
`session`         reads the session files of one attempt
`session_search`  finds session files
`sampling`        looks at memory and processes, and tells the core
`price_list`      loads the price library when it is needed
`pricing`         what tokens cost, from the config and the library genai-prices
"""
