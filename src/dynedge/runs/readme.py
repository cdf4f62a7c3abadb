"""The README of a run folder, for whoever finds it."""

from __future__ import annotations

from pathlib import Path

from dynedge import __version__
from dynedge.data.log import EventLog
from dynedge.runs.run_config import RunConfig
from dynedge.training.train_state import Course
from dynedge.utils.progress import clock

FILES = """
| file | what |
|---|---|
| `config.toml` | every setting and its help; `dynedge train LOG --config config.toml --out …` trains the same |
| `model.safetensors` | parameters of the best epoch by validation MRR |
| `state.safetensors` | what that model remembers of users and items after the training events, not the later ones |
| `known.safetensors` | how many events that were, the newest one's time, and each item's number of events |
| `now.safetensors` | both again after later events, where the run was saved with a state that went on |
| `ids/` | the users' and items' own ids and the items' categories: a log without events |
| `metrics.jsonl` | one line an epoch: loss, validation MRR and Recall@10, seconds, the process's peak memory |
| `facts.json` | how many parameters it learns, and how it laid out its training where it says so |
| `env.json` | versions, machine, threads, precision |
| `ranks/` | the rank of every validation and test event's item, once `dynedge evaluate` was here |
| `checkpoints/` | where training stands, for `--resume`; may be deleted once it has finished |

Nothing here is pickled: safetensors, npy, JSON, TOML and JSON lines.
"""

USE = """
`dynedge evaluate {folder}` judges it, `dynedge recommend {folder} --users A,B` answers from it; in Python:

```python
import dynedge

model = dynedge.Edge.load("{folder}")  # needs no training data
model.recommend(["some user"], k=10).item
```
"""


def readme(folder: Path, config: RunConfig, log: EventLog, course: Course | None) -> str:
    """`course` is None while it still trains."""
    source = log.path.name if log.path else "a log in memory"
    split = config.training.split_of(log)
    lines = [
        f"# {folder.name}: a trained `{config.name}`\n",
        f"Made by dynedge {__version__} from the log `{source}`: {len(log):,} events, {log.num_users:,} users, "
        f"{log.num_items:,} items; split {split} (train, valid, test) by position in time.\n",
        _outcome(course, folder),
        FILES,
        USE.format(folder=folder.name),
    ]
    return "\n".join(lines)


def _outcome(course: Course | None, folder: Path) -> str:
    if course is None:
        return (
            "**Training has not finished.** The command that started it, with `--resume`, goes on from the last "
            f"checkpoint: `dynedge train LOG --out {folder.name} --resume`.\n"
        )
    spent = sum(record["seconds"] + record["valid_seconds"] for record in course.history)
    trained = f"Trained for {len(course.history)} epochs in {clock(spent)}"
    if course.best is None or course.best.valid_mrr is None:
        return f"{trained}; nothing to validate on, so the model is the last epoch's.\n"
    recall = course.history[course.best.epoch]["valid_recall@10"]
    return (
        f"{trained}. Best epoch {course.best.epoch + 1}: validation MRR {course.best.valid_mrr:.4f}, Recall@10 "
        f"{recall:.4f}, each event's item ranked among all items. The test events were not looked at.\n"
    )
