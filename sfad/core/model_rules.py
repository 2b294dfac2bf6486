"""Models that a run may call: `gateway.models` and `--model-allow`."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .policy import Policy
from .run import Run


@dataclass(frozen=True, slots=True)
class _Rule:
    patterns: tuple[str, ...]
    source: str


def forbidden_model(run: Run, model: str, policy: Policy) -> str | None:
    """Return why the run may not call a model."""
    rules = [_Rule(policy.models, policy.where_set("gateway.models"))]
    rules += [_Rule(each.patterns, f"--model-allow of run {each.run}") for each in run.birth.models]
    for rule in rules:
        if rule.patterns and not any(fnmatchcase(model, pattern) for pattern in rule.patterns):
            return f"the model '{model}' is not one of {', '.join(rule.patterns)} ({rule.source}); use one of these"
    return None
