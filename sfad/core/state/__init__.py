"""What the core knows: values and rules, which no event changes by itself.

`vocabulary`  names of timers and signals, kinds of reasons
`access`      who may do what, and which runs a request means
`policy`      the configured numbers
`naming`      the loop identity of a command
`request`     what a spawn asks for
`budgets`     money of users and teams, and nano-dollars
`account`     what a run has used and reserved
`limits`      where a run's limits come from, and what exceeds them
`allowances`  budgets over the nodes of a fleet: what the keeper gives, and what other nodes ask it
              for
`grants`      what is known of a run on another node, and of the lease of one that another node has
              granted
`run`         one run: its number, what is saved of it, how far a stop has come, and its transition
              table
`tree`        the live runs, the bounds that a lineage shares, and what a daemon finds of an earlier
              one
`quotas`      rates and the queue of waiting trees
`holds`       why a run waits, from all of these
"""
