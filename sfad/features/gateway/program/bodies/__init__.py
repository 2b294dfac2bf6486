"""What the bodies of calls say.

`reading`       what the body of a call asks for, and the body with a lower maximum output; the
                process that reads those that are not small
`reader`        has them read by that process
`estimate`      how many tokens the input of a call has
`coding`        what a body holds under its content encoding
`usage_chunks`  takes out of a stream what its client has not asked for
"""
