"""The pure core: an event goes in, an outcome comes out. No I/O, no clock, no trio: tests run thousands of simulated runs in it.

Events are named in the past tense and carry the time they happened at. An outcome has commands, which the shell applies in
order, and the runs whose snapshots it saves before. `machine` routes each event to one component; each component knows only
those before it in this list:

`context`            the live runs and the present outcome, which all components share
`spending`           accounts of runs, and money budgets
`alert_board`        publishes alerts
`lifecycle`          the steps of every run's life: launch, clock, end
`stopping`           decides ends, and climbs the stop ladder
`stop_requests`      `stop`, the daemon's end, and clients that were lost
`pausing`            pause and resume
`attempts`           what the launcher tells of an attempt, and what its agent prints
`tool_rules`         tools that a run may not use
`bypasses`           use that went around the gateway
`unadmitted`         agent programs that were started within a run without asking
`limit_holds`        runs that wait because of a limit
`limit_enforcement`  limits of live runs: what is near or exceeded, and what follows
`widening`           runs that get the profile of agent programs, because one starts in them
`budget_enforcement` trees whose budgets have run out
`limit_requests`     `resume`, `approve`, `deny` and `limit`: more room for a run, or less
`use_requests`       `report`, `reserve` and `settle`: an agent tells its own use
`repeats`            tool calls that a model repeats
`call_rates`         how often runs and users call models, and how many calls at once
`model_rules`        models that a run may call
`calls`              calls of a model that the gateway asks for
`awaiting`           runs that start when others have ended
`admission`          `spawn`, from the guard to the launch
`adopting`           runs of an earlier daemon
`budget_alerts`      what alerts watch of budgets
`alerts`             what operators are told without asking: looks after each event at what it has changed
`machine`            routes events and timers

They work on these values and rules:

`events`             what happened
`commands`           what to do
`vocabulary`         names of timers and signals, kinds of reasons, types of events
`asked`              what a spawn asks for
`run`                one run: what is saved of it, and its transition table
`remembered`         what a daemon finds of an earlier one
`tree`               the live runs, and the bounds that a lineage shares
`candidate`          the run that a request describes, its values checked
`guard`              ordered rules: admit or refuse
`access`             who may do what
`policy`             the configured numbers
`tool_lists`         which tools a run may use
`event_rates`        how many events an agent may cause
`quotas`             rates and the queue of waiting trees
`ladder`             how far a stop has come
`limits`             where a run's limits come from, and what exceeds them
`session_limits`     the limits of a session
`breaches`           what is told of a breach
`alert`              one alert: raised, held, cleared
`run_alerts`         what alerts watch of one run
`shared_alerts`      what alerts watch of all runs together
`windows`            sums over the last hour
`account`            what a run has used and reserved
`calls_under_way`    what the calls under way of each user take
`budgets`            money of users and teams
`money`              nano-dollars, and their conversion
`naming`             the loop identity of a command
`ids`                run numbers as text
`labels`             which runs a request for labels means
"""
