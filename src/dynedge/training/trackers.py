"""Experiment trackers: TensorBoard, MLflow and Weights & Biases get a run's settings and the numbers of each epoch.

A tracker is chosen as KIND or KIND:PLACE (`mlflow:sqlite:///mlflow.db`). Its package is imported when it is used.
What fails before training is an error; a tracker that fails later is reported once and left out: training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from dynedge.errors import UsageError
from dynedge.utils.progress import print_line

PROJECT = "dynedge"  # name of the experiment or project, unless it is given
TAG = "dynedge.folder"


class Tracker(Protocol):
    """Where the numbers of a run go."""

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


Open = Callable[[str, Path, Mapping[str, Any], int], Tracker]


class TensorBoard:
    """Event files in RUN/tensorboard; those of epochs after `epochs_done` are replaced when a run is resumed."""

    def __init__(self, place: str, folder: Path, settings: Mapping[str, Any], epochs_done: int) -> None:
        target = place or str(folder / "tensorboard")
        self._writer = _package("tensorboard").SummaryWriter(target, purge_step=epochs_done + 1)

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, epoch)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of the experiment `dynedge` at a URI, by default $MLFLOW_TRACKING_URI; resumed with the folder."""

    def __init__(self, place: str, folder: Path, settings: Mapping[str, Any], epochs_done: int) -> None:
        self._client = _package("mlflow").MlflowClient(tracking_uri=place or None)
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = self._client.create_experiment(PROJECT) if experiment is None else experiment.experiment_id
        path = str(folder.absolute())
        started = self._client.search_runs([number], f"tags.`{TAG}` = '{path}'") if epochs_done else []
        if started:
            self._run = started[0].info.run_id
        else:
            self._run = self._client.create_run(number, run_name=folder.name, tags={TAG: path}).info.run_id
            for name, value in settings.items():
                self._client.log_param(self._run, name, value)

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        for name, number in numbers.items():
            self._client.log_metric(self._run, name.replace("@", "_at_"), number, step=epoch)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """A run of a project, by default `dynedge`; resumed with the folder."""

    def __init__(self, place: str, folder: Path, settings: Mapping[str, Any], epochs_done: int) -> None:
        name, resume = folder.name, "allow" if epochs_done else None
        options = {"name": name, "id": name, "resume": resume, "config": dict(settings), "dir": str(folder)}
        self._run = _package("wandb").init(project=place or PROJECT, **options)

    def log(self, epoch: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=epoch)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Open] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}
CHOICES = "tensorboard[:FOLDER], mlflow[:URI], wandb[:PROJECT]"
MODULES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


class Trackers:
    """The trackers of a run; opened when training starts."""

    def __init__(self, chosen: Sequence[str], folder: Path | None = None) -> None:
        self._chosen, self._folder, self._open = chosen, folder, dict[str, Tracker]()
        for choice in chosen:
            kind = choice.partition(":")[0]
            if kind not in TRACKERS:
                raise UsageError(f"--track {choice}: there is no tracker '{kind}'; choose one of: {CHOICES}.")
            _package(kind)

    def start(self, settings: Mapping[str, Any], epochs_done: int) -> None:
        """Opens them; `epochs_done` is 0 unless a run is resumed."""
        if self._folder is None:
            return
        for choice in self._chosen:
            kind, _, place = choice.partition(":")
            try:
                self._open[choice] = TRACKERS[kind](place, self._folder, settings, epochs_done)
            except UsageError:
                raise
            except Exception as error:
                raise UsageError(f"--track {choice}: {_sentence(error)}") from None

    def log(self, epoch: int, record: Mapping[str, Any]) -> None:
        """Sends the numbers of an epoch."""
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        self._each(lambda tracker: tracker.log(epoch, numbers))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())
        self._open.clear()

    def _each(self, work: Callable[[Tracker], None]) -> None:
        for choice, tracker in list(self._open.items()):
            try:
                work(tracker)
            except Exception as error:
                del self._open[choice]
                print_line(f"--track {choice} failed and is left out from now on: {_sentence(error)}")


def _package(kind: str) -> Any:
    try:
        return import_module(MODULES[kind])
    except ImportError:
        raise UsageError(f"--track {kind} needs {kind}; install it with: pip install 'dynedge[{kind}]'") from None


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).split(". ")[0].rstrip(".") + "."
