"""How well a model ranks what comes next: protocol, metrics, confidence intervals."""
