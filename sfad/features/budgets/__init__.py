"""Money budgets of users and teams, over days, weeks or months (docs/limits.md).

`messages`   what nodes of a fleet ask the one that keeps the budgets
`feature`    the declaration
`budgets`    one budget, as it stands
`told`       what the half in the core and the part tell each other
`allowances` budgets over the nodes of a fleet: what the keeper gives, and what other nodes ask it
             for
`charges`    what is charged and reserved, and what is published of it
`purses`     what is refused, and which trees are paused: the half in the core
`books`      which period it is, and what was charged in it, between config, ledger, spool and core
`drawing`    asks the keeper for more
`showing`    how budgets are shown
`part`       what of this a daemon does
"""
