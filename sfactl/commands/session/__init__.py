"""`sfactl session`: a module for each verb."""

from ...app import Application

app = Application(
    name="session", help="Delegate work to other agents: start, watch and stop sessions."
)
