"""Choice of the next settings to try: optuna's TPE sampler, rebuilt from the finished trials for every proposal."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from dynedge.errors import UsageError
from dynedge.experiments.search_space import SearchSpace, Settings

Trial = dict[str, Any]  # "settings", "valid_mrr" (None if it failed), and more
RANDOM_TRIALS = 6  # at first; the recipe's is one of them


def tpe_sampler(space: SearchSpace) -> Callable[[list[Trial]], Settings]:
    """Returns a function from the finished trials to the next settings; the first are the recipe's.

    It keeps no state: the same trials always give the same settings. Two models with the same space have other random
    trials.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError("tune needs optuna; install it with: pip install 'dynedge[tune]'") from None
    from optuna.trial import create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    choices: Any = {key: optuna.distributions.CategoricalDistribution(values) for key, values in space.values.items()}

    def optuna_trial(trial: Trial) -> Any:
        # A failed trial counts as the worst possible: optuna ignores failed ones, and would propose them forever.
        return create_trial(params=trial["settings"], distributions=choices, value=trial["valid_mrr"] or 0.0)

    def next_settings(trials: list[Trial]) -> Settings:
        if not trials:
            return space.start
        seed = (zlib.crc32(space.recipe.name.encode()) + len(trials)) % 2**31
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(map(optuna_trial, trials))
        return dict(study.ask(choices).params)

    return next_settings
