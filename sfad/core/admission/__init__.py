"""From a request to a launch.

`candidate`  the run that a request describes, its values checked; the limits of a session
`guard`      ordered rules: admit or refuse
`awaiting`   runs that start when others have ended
`admission`  `spawn`, from the guard to the launch; roots that get the profile of agent programs, because one starts in them
`adopting`   runs of an earlier daemon
"""
