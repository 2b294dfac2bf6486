"""The declaration."""

from ...feature import Feature

SHIMS = "SFA_SHIMS"
"""Of a run: what its PATH begins with."""

FEATURE = Feature(variables=(SHIMS,), part="part")
