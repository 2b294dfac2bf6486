"""`sfactl hooks`: a module for each verb."""

from ...app import Application

app = Application(name="hooks", help="Show the hooks of the config, and try one.")
