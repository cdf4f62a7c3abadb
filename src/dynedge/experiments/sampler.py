"""Which settings to try next: optuna's TPE, asked anew for every trial, so that nothing but the trials is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynedge.errors import UsageError
from dynedge.experiments.search_space import Settings, Space

Trial = dict[str, Any]  # "settings" and "valid_mrr", which is None of one that failed, and more


def proposer(space: Space) -> Callable[[list[Trial]], Settings]:
    """propose(trials so far) -> settings: first the recipe's own. It follows from the trials and nothing else."""
    try:
        import optuna
    except ImportError:
        raise UsageError("tune needs optuna; install it with: pip install 'dynedge[tune]'") from None
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    choices: Any = {key: optuna.distributions.CategoricalDistribution(values) for key, values in space.values.items()}

    def told(trial: Trial) -> Any:
        state = TrialState.FAIL if trial["valid_mrr"] is None else TrialState.COMPLETE
        return create_trial(params=trial["settings"], distributions=choices, value=trial["valid_mrr"], state=state)

    def propose(done: list[Trial]) -> Settings:
        if not done:
            return space.start
        sampler = optuna.samplers.TPESampler(seed=len(done))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(map(told, done))
        return dict(study.ask(choices).params)

    return propose
