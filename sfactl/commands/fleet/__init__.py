"""`sfactl fleet`: a module for each verb."""

from ...app import Application

app = Application(name="fleet", help="Nodes of the fleet.")
