"""EDGE in Python: fit a log, recommend, take in new events, save and load. What it saves is a run folder."""

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
from dynedge.errors import DataError, UsageError
from dynedge.inference.event_input import COLUMNS, encode_events
from dynedge.inference.recommend import Recommendations, distinct_users, recommend
from dynedge.inference.session import Session
from dynedge.models.registry import default_model
from dynedge.runs.folder import RunFolder
from dynedge.runs.run_config import RunConfig, parse_config, recipe_config, resolve_key
from dynedge.runs.train_run import train_run


class Edge:
    """The default model. Edge(epochs=5, dim=32).fit(log).recommend(["ann"], k=10)

    `config` is a config.toml, as a run folder has one, or what was read from it; settings are its fields by their
    short names, as the flags of `dynedge train`.
    """

    def __init__(self, config: RunConfig | str | os.PathLike[str] | None = None, **settings: Any) -> None:
        told = config if isinstance(config, RunConfig) else _read(config)
        for name, value in settings.items():
            told = set_key(told, resolve_key(told, name, f"setting '{name}'"), value, "Edge")
        self.config = told
        self._session: Session | None = None

    def fit(self, log: EventLog | str | os.PathLike[str], *, quiet: bool = True) -> Edge:
        """Train on the log's training part, choose the best epoch on its validation part, then take in the rest."""
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
        """The k best items for each user at `time`, or at the newest event known; unknown users get the popular list.

        `filter_seen` leaves out what a user has had.
        """
        session = self._fitted()
        requested = [users] if isinstance(users, str | int) else list(users)
        query_time = None if time is None else parse_timestamp(time, session.time_unit)
        return recommend(session, distinct_users(session, requested), k, query_time, filter_seen=filter_seen)

    def update(self, events: Any, columns: tuple[str, str, str] = COLUMNS) -> Edge:
        """New events move the states; nothing is trained. Users and items are those of the fitted log.

        `events` is a log, a frame with these columns, or three sequences: users, items and times.
        """
        session = self._fitted()
        log = encode_events(session.run_log, events, columns, session.time_unit)
        session.apply(log, range(len(log)))
        return self

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """A run folder, there whole or not at all; the verbs read it too."""
        self._fitted().save(Path(path), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Edge:
        """A run folder as `save` or `dynedge train` left it; no data is needed."""
        session = Session.open(path)
        model = cls(session.config)
        model._session = session
        return model

    def _fitted(self) -> Session:
        if self._session is None:
            raise UsageError("this model knows nothing yet: fit it to a log, or load a run.")
        return self._session


def _read(path: str | os.PathLike[str] | None) -> RunConfig:
    if path is None:
        return recipe_config(default_model())
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no config.toml that can be read: {error}.") from None
    return parse_config(text, str(path))
