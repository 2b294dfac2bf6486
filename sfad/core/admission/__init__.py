"""From a request to a launch.

`candidate`  the run that a request describes, its values checked; the limits of a session
`guard`      ordered rules: admit or refuse
`admission`  `spawn`, from the guard to the launch, also when other runs have ended; roots that get
             the profile of agent programs
`adopting`   runs of an earlier daemon
"""
