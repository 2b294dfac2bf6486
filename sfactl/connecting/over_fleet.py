"""What has a daemon answer for all nodes of its fleet: of a feature, which may not be there."""

from sfad.features.fleet.messages import FleetNodes as FleetNodes
from sfad.features.fleet.messages import OverFleet as OverFleet
