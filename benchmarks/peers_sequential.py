"""GRU4Rec and SASRec beside RecBole's: the same training events, histories, loop, stopping and ranks.

    pip install --no-deps --target PEERS recbole==1.2.1 colorlog==4.7.2 colorama==0.4.4 pyyaml tqdm texttable \\
        psutil thop tabulate scikit-learn joblib threadpoolctl tensorboard protobuf plotly
    PYTHONPATH=PEERS python benchmarks/peers_sequential.py LOG --epochs 10 --seeds 1

RecBole pins packages that clash with this project's, so that it is put beside it. Its models are its own code with
its own defaults (model/*.yaml), its own beginnings and cross-entropy over all items, as it runs them; they are put
into this project's contract as another way to read a history. SumPooling, DIEN and MIMN: RecBole's DIN and DIEN
predict clicks from a candidate each and cannot be asked for all items; no maintained package ranks with them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from machine_info import machine
from torch import Tensor

from dynedge.config import option, override
from dynedge.data.log import EventLog, read_log
from dynedge.models.base import Model
from dynedge.models.baselines.sequential.base import VectorConfig, VectorModel, in_order
from dynedge.models.registry import BUILT_IN as MODELS
from dynedge.models.registry import Entry, use_only
from dynedge.runs.run_config import build_model, recipe_config
from dynedge.training.loop import fit

CLASSES = {"gru4rec": "GRU4Rec", "sasrec": "SASRec"}


@dataclass(frozen=True)
class PeerConfig(VectorConfig):
    """A model of RecBole's."""

    kind: str = option("gru4rec", "which", choices=tuple(CLASSES))
    full_softmax_up_to: int = option(1 << 30, "all items are candidates")
    temperature: float = option(0.0, "inner products")


class Peer(VectorModel):
    """RecBole's items are numbered from 1; 0 is none."""

    def __init__(self, config: PeerConfig, shape: Any, categories: Any) -> None:
        super().__init__(config, shape, categories)
        del self.items
        import recbole

        name = CLASSES[config.kind]
        found = importlib.import_module(f"recbole.model.sequential_recommender.{config.kind}")
        folder = Path(recbole.__file__).parent / "properties"
        told = yaml.safe_load((folder / "model" / f"{name}.yaml").read_text())
        told["layer_norm_eps"] = 1e-12  # YAML reads the 1e-12 that stands there as a word
        fields = {"USER_ID_FIELD": "user", "ITEM_ID_FIELD": "item", "NEG_PREFIX": "neg_", "LIST_SUFFIX": "_list"}
        told |= fields | {"ITEM_LIST_LENGTH_FIELD": "length", "MAX_ITEM_LIST_LENGTH": config.length, "device": "cpu"}
        self.model = getattr(found, name)(told, Counts(shape.items + 1))

    def read(self, history: Tensor, there: Tensor, vectors: Tensor) -> Tensor:
        walked, long = in_order((history + 1) * there, there)
        return self.model(walked, long.clamp_min(1))

    def _vectors(self, items: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.model.item_embedding((items + 1) % (self.shape.items + 1))
        return rows, rows.new_zeros(len(items))


class Counts:
    """What RecBole's models ask of a data set."""

    def __init__(self, items: int) -> None:
        self.items = items

    def num(self, field: str) -> int:
        return self.items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--models", default=",".join(CLASSES))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--validation-events", type=int, default=10_000)
    parser.add_argument("--set", action="append", default=[], help="of ours, as model.length=20")
    parser.add_argument("--set-peer", action="append", default=[], help="of theirs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    log = read_log(args.log)
    print(f"{machine()}; torch {torch.__version__}; {args.log.name}: {len(log)} events")
    print("| | seed | valid MRR | Recall@10 | best epoch | s/epoch |\n|---|---|---|---|---|---|")
    use_only(MODELS | {f"{kind} (RecBole)": peer(kind) for kind in CLASSES})
    for kind in args.models.split(","):
        for seed in range(args.seeds):
            for name, settings in ((kind, args.set), (f"{kind} (RecBole)", args.set_peer)):
                told = [f"training.{key}={getattr(args, key)}" for key in ("epochs", "patience", "validation_events")]
                told += [f"training.seed={seed}", "training.split=0.8,0.1,0.1", "training.device=cpu"]
                show(name, seed, [*told, *settings], log)


def peer(kind: str) -> Entry:
    recipes = {f"{kind} (RecBole)": PeerConfig(kind=kind)}
    return Entry(
        PeerConfig, Peer.create, Peer.restore, recipes, training={name: {"max_grad_norm": "inf"} for name in recipes}
    )


def show(name: str, seed: int, settings: list[str], log: EventLog) -> None:
    config = override(recipe_config(name), settings)
    model: Model = build_model(config, log)
    history = fit(model, log, config.training).history
    best = max(history, key=lambda record: record["valid_mrr"])
    seconds = float(np.median([record["seconds"] for record in history]))
    cells = f"{best['valid_mrr']:.4f} | {best['valid_recall@10']:.4f} | {best['epoch']} | {seconds:.1f}"
    print(f"| {name} | {seed} | {cells} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
