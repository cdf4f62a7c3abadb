"""Compares GRU4Rec and SASRec with RecBole's: same training events, histories, training loop, stopping and ranking.

    pip install --no-deps --target PEERS recbole==1.2.1 colorlog==4.7.2 colorama==0.4.4 pyyaml tqdm texttable \\
        psutil thop tabulate scikit-learn joblib threadpoolctl tensorboard protobuf plotly
    PYTHONPATH=PEERS python benchmarks/peers_sequential.py LOG --epochs 10 --seeds 1

RecBole pins versions that conflict with this project's, hence the separate folder. Its models are used unchanged,
with their defaults (model/*.yaml), initialization and cross-entropy over all items, wrapped into this project's model
contract as encoders of a user's history. SumPooling, DIEN and MIMN have no counterpart: RecBole's DIN and DIEN
predict clicks for one candidate at a time and cannot rank all items, and no maintained package does.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from machine_info import describe_machine
from torch import Tensor

from dynedge.config import option, override
from dynedge.data.log import EventLog, read_log
from dynedge.models.base import LogShape
from dynedge.models.baselines.sequential.base import VectorConfig, VectorModel, oldest_first
from dynedge.models.registry import BUILT_IN, Entry, use_only
from dynedge.runs.run_config import build_model, recipe_config
from dynedge.training.loop import fit

CLASSES = {"gru4rec": "GRU4Rec", "sasrec": "SASRec"}
SHARED_SETTINGS = "epochs", "patience", "validation_events"


@dataclass(frozen=True)
class RecBoleConfig(VectorConfig):
    """Config of a RecBole model."""

    kind: str = option("gru4rec", "RecBole model.", choices=tuple(CLASSES))
    full_softmax_up_to: int = option(1 << 30, "Largest number of items for a softmax over all items.")
    temperature: float = option(0.0, "Temperature of the scores; 0: inner products.")


class RecBoleModel(VectorModel):
    """A RecBole model under this project's contract. RecBole numbers items from 1; 0 is padding."""

    def __init__(self, config: RecBoleConfig, shape: LogShape) -> None:
        super().__init__(config, shape)
        del self.items
        self.model = recbole_model(config.kind, shape.items, config.history_length, "cpu")

    def encode_history(self, history: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        ordered, length = oldest_first((history + 1) * mask, mask)
        return self.model(ordered, length.clamp_min(1))

    def _item_vectors(self, items: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.model.item_embedding((items + 1) % (self.shape.items + 1))
        return rows, rows.new_zeros(len(items))


def recbole_model(kind: str, items: int, length: int, device: str, **changed: Any) -> Any:
    """A RecBole model with its own defaults, but for `changed`; a batch is a dict with item_list, length and item."""
    import recbole

    name = CLASSES[kind]
    module = importlib.import_module(f"recbole.model.sequential_recommender.{kind}")
    settings = yaml.safe_load((Path(recbole.__file__).parent / "properties" / "model" / f"{name}.yaml").read_text())
    settings["layer_norm_eps"] = 1e-12  # YAML reads the 1e-12 of the file as a string
    fields = {"USER_ID_FIELD": "user", "ITEM_ID_FIELD": "item", "NEG_PREFIX": "neg_", "LIST_SUFFIX": "_list"}
    sizes = {"ITEM_LIST_LENGTH_FIELD": "length", "MAX_ITEM_LIST_LENGTH": length, "device": device}
    return getattr(module, name)(settings | fields | sizes | changed, DatasetSize(items + 1)).to(device)


class DatasetSize:
    """The part of RecBole's data set that its models read."""

    def __init__(self, items: int) -> None:
        self.items = items

    def num(self, field: str) -> int:
        return self.items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="Log folder.")
    parser.add_argument("--models", default=",".join(CLASSES), help="Models, separated by commas.")
    parser.add_argument("--epochs", type=int, default=10, help="Maximum number of epochs.")
    parser.add_argument("--patience", type=int, default=3, help="Epochs without improvement before the end.")
    parser.add_argument("--seeds", type=int, default=1, help="Number of seeds.")
    parser.add_argument("--validation-events", type=int, default=10_000, help="Number of events ranked.")
    parser.add_argument(
        "--set", action="append", default=[], help="Setting of dynedge's models, such as model.history_length=20."
    )
    parser.add_argument("--set-peer", action="append", default=[], help="Setting of RecBole's models.")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    log = read_log(args.log)
    print(f"{describe_machine()}; torch {torch.__version__}; {args.log.name}: {len(log)} events")
    print("| | seed | valid MRR | Recall@10 | best epoch | s/epoch |\n|---|---|---|---|---|---|")
    use_only(BUILT_IN | {f"{kind} (RecBole)": recbole_entry(kind) for kind in CLASSES})
    for kind in args.models.split(","):
        for seed in range(args.seeds):
            for name, settings in ((kind, args.set), (f"{kind} (RecBole)", args.set_peer)):
                shared = [f"training.{key}={getattr(args, key)}" for key in SHARED_SETTINGS]
                shared += [f"training.seed={seed}", "training.split=0.8,0.1,0.1", "training.device=cpu"]
                report(name, seed, [*shared, *settings], log)


def recbole_entry(kind: str) -> Entry:
    recipes = {f"{kind} (RecBole)": RecBoleConfig(kind=kind)}
    training = {name: {"max_grad_norm": "inf"} for name in recipes}
    return Entry(RecBoleModel, RecBoleConfig, recipes, training=training)


def report(name: str, seed: int, settings: list[str], log: EventLog) -> None:
    config = override(recipe_config(name), settings)
    model = build_model(config, log)
    history = fit(model, log, config.training).history
    best = max(history, key=lambda record: record["valid_mrr"])
    seconds = float(np.median([record["seconds"] for record in history]))
    cells = f"{best['valid_mrr']:.4f} | {best['valid_recall@10']:.4f} | {best['epoch']} | {seconds:.1f}"
    print(f"| {name} | {seed} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
