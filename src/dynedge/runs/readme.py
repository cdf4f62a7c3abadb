"""The README.md of a run folder."""

from __future__ import annotations

from pathlib import Path

from dynedge import __version__
from dynedge.data.log import EventLog
from dynedge.evaluation.summary import describe_candidates
from dynedge.runs.run_config import RunConfig
from dynedge.training.train_state import TrainState
from dynedge.utils.progress import clock

FILES = """
| file | contents |
|---|---|
| `config.toml` | every setting with its help; `dynedge train LOG --config config.toml --out …` trains it again |
| `model.safetensors` | parameters of the best epoch by validation MRR |
| `state.safetensors` | states of users and items at the end of the training events |
| `coverage.safetensors` | number of events in those states, time of the newest one, number of events per item |
| `current_state.safetensors` | state and coverage after later events, if the run was saved with them |
| `added_ids.json` | ids of users and items that only those later events have |
| `ids/` | external ids of users and items, item categories: a log without events |
| `metrics.jsonl` | one line per epoch: loss, validation MRR and Recall@10, seconds, peak memory |
| `run_info.json` | number of parameters, and the model's statistics of its training schedule |
| `env.json` | versions, machine, threads, precision |
| `ranks/` | the rank of each validation and test event's item, after `dynedge evaluate` |
| `manifest.json` | sizes and SHA-256 of these files, verified when the run is opened |
| `checkpoints/` | training progress, for `--resume`; may be deleted when training has finished |

No file is pickled: the formats are safetensors, npy, JSON, TOML and JSON lines.
"""

USE = """
`dynedge evaluate {folder}` evaluates it, `dynedge recommend {folder} --users A,B` recommends items; in Python:

```python
import dynedge

model = dynedge.Edge.load("{folder}")  # needs no training data
model.recommend(["some user"], k=10).item
```
"""


def readme(folder: Path, config: RunConfig, log: EventLog, train_state: TrainState | None) -> str:
    """Returns the README's text; `train_state` is None while training has not finished."""
    source = log.path.name if log.path else "a log in memory"
    split = config.training.split or log.split
    lines = [
        f"# {folder.name}: a trained `{config.name}` model\n",
        f"Trained by dynedge {__version__} on the log `{source}`: {len(log):,} events, {log.num_users:,} users, "
        f"{log.num_items:,} items; split {split} (train, validation, test), in time order.\n",
        _unfinished(folder) if train_state is None else _outcome(train_state, log),
        FILES,
        USE.format(folder=folder.name),
    ]
    return "\n".join(lines)


def _unfinished(folder: Path) -> str:
    return (
        "**Training has not finished.** The command that started it, with `--resume`, continues from the last "
        f"checkpoint: `dynedge train LOG --out {folder.name} --resume`.\n"
    )


def _outcome(train_state: TrainState, log: EventLog) -> str:
    spent = sum(record["seconds"] + record["valid_seconds"] for record in train_state.history)
    trained = f"Trained for {len(train_state.history)} epochs in {clock(spent)}"
    best = train_state.best
    if best is None or best.valid_mrr is None:
        return f"{trained}; there were no validation events, so the model is that of the last epoch.\n"
    record = train_state.history[best.epoch]
    candidates = describe_candidates(record["valid_protocol"], log.num_items)
    return (
        f"{trained}. Best epoch {best.epoch + 1}: validation MRR {best.valid_mrr:.4f}, Recall@10 "
        f"{record['valid_recall@10']:.4f}, each event's item ranked among {candidates} (protocol "
        f"`{record['valid_protocol']}`). The test events were not used.\n"
    )
