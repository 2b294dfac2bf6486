"""What operators can watch.

`log`  the JSON log
"""
