"""Python API: the class Edge fits a log, recommends items, applies new events, and saves and loads run folders."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynedge.config import set_key
from dynedge.data.id_index import ExternalId
from dynedge.data.log import EventLog, read_log
from dynedge.data.timestamps import Timestamp, parse_timestamp
from dynedge.errors import UsageError
from dynedge.inference.event_input import COLUMNS, encode_events
from dynedge.inference.recommend import Recommendations, distinct_users, recommend
from dynedge.inference.session import Session
from dynedge.models.registry import default_model
from dynedge.runs.folder import RunFolder
from dynedge.runs.run_config import RunConfig, parse_config, read_config_file, recipe_config, resolve_key
from dynedge.runs.train_run import train_run


class Edge:
    """A recommender with the interface fit, recommend, update, save and load.

        model = Edge(epochs=5, dim=32).fit("log")
        model.recommend(["ann"], k=10)

    `config` is the path of a config.toml, such as that of a run folder, or a RunConfig; by default, that of the model
    `edge`. Keyword arguments set fields of the config by name, like the flags of `dynedge train`.
    """

    def __init__(self, config: RunConfig | str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self.config = config if isinstance(config, RunConfig) else _read_config(config)
        for name, value in settings.items():
            self.config = set_key(self.config, resolve_key(self.config, name, f"setting '{name}'"), value, "Edge")
        self._session: Session | None = None

    def fit(self, log: EventLog | str | os.PathLike[str], *, quiet: bool = True) -> Edge:
        """Trains on a log or a log folder, and returns self.

        The best epoch by validation MRR is kept; the validation and test events then update the states.
        """
        opened = log if isinstance(log, EventLog) else read_log(log)
        folder = Path(tempfile.mkdtemp(prefix="dynedge-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        with RunFolder(folder / "run") as run:
            self.config, _ = train_run(run, self.config, opened, quiet=quiet)
        self._session = Session.open(folder / "run")
        self._session.advance_to(opened, quiet=quiet)
        return self

    def recommend(
        self,
        users: ExternalId | Iterable[ExternalId],
        k: int = 10,
        time: Timestamp | None = None,
        filter_seen: bool = False,
    ) -> Recommendations:
        """Returns the k best items for each user; unknown users get the most popular items.

        `users` are ids of the original data, `time` is the time of the request (default: that of the newest event),
        and `filter_seen` hides items that the user has already seen.
        """
        session = self._fitted()
        requested = [users] if isinstance(users, str | int) else list(users)
        query_time = None if time is None else parse_timestamp(time, session.time_unit)
        return recommend(session, distinct_users(session, requested), k, query_time, filter_seen=filter_seen)

    def update(self, events: Any, columns: tuple[str, str, str] = COLUMNS) -> Edge:
        """Updates the states with new events, without training, and returns self.

        `events` is a log, a data frame with these columns, or three sequences: users, items and times. All users and
        items must occur in the fitted log.
        """
        session = self._fitted()
        log = encode_events(session.run_log, events, columns, session.time_unit)
        session.apply(log, range(len(log)))
        return self

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes a run folder, atomically; the commands can read it too."""
        self._fitted().save(Path(path), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Edge:
        """Reads a run folder that `save` or `dynedge train` wrote; the log is not needed."""
        session = Session.open(path)
        model = cls(session.config)
        model._session = session
        return model

    def _fitted(self) -> Session:
        if self._session is None:
            raise UsageError("this model is not fitted: call fit with a log, or load a run.")
        return self._session


def _read_config(path: str | os.PathLike[str] | None) -> RunConfig:
    if path is None:
        return recipe_config(default_model())
    return parse_config(read_config_file(Path(path)), str(path))
