"""Python API: Model fits a log or a data frame, is evaluated, recommends, applies new events, is saved and loaded.

Edge is Model with the default model. `compare` compares fitted models on the same test events.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch

from dynedge.config import flatten, set_key
from dynedge.data.frames import ITEM_NAMES, TIME_NAMES, USER_NAMES, Frame, as_arrow, infer_column, is_frame
from dynedge.data.id_index import ExternalId, plain_id
from dynedge.data.ingest.pipeline import DEFAULT_MAX_BAD, mixed_time_units, prepare
from dynedge.data.ingest.schema import Schema
from dynedge.data.log import EventLog, read_log
from dynedge.data.timestamps import Timestamp, format_timestamp, parse_timestamp
from dynedge.errors import UsageError
from dynedge.evaluation.results import PARTS, Comparison, Evaluation
from dynedge.experiments.compare_runs import check_comparable, comparison
from dynedge.inference.recommend import Recommendations, UserRecommendations, distinct_users, recommend
from dynedge.inference.rules import Rules, Values
from dynedge.inference.session import Session, check_k
from dynedge.models.capabilities import Explainable
from dynedge.models.registry import default_model
from dynedge.runs.evaluate_run import RunRanks, evaluate_run
from dynedge.runs.folder import RunFolder
from dynedge.runs.list_evaluation import evaluate_lists
from dynedge.runs.run_config import RunConfig, parse_config, read_config_file, recipe_config, resolve_key
from dynedge.runs.train_run import train_run
from dynedge.serving.service_queries import explained, find_row, query_time, similar_items
from dynedge.utils.api_words import api_words

SIDES = "user", "item"


class Model:
    """A recommender with the interface fit, evaluate, recommend, update, save and load.

    `model` is the name of a registered model or recipe (`dynedge.models.registry`), the path of a config.toml, such
    as that of a run folder, or a RunConfig; by default the model `edge`. Keyword arguments set fields of the config
    by name, like the flags of `dynedge train`.

    >>> frame = {"user_id": ["ann", "bob"] * 10, "item_id": ["tea", "milk"] * 10, "timestamp": list(range(20))}
    >>> model = Model("popular").fit(frame)
    >>> model.recommend("ann", k=2).item_id.tolist()
    ['tea', 'milk']
    >>> model.evaluate().columns
    ['part', 'metric', 'value', 'low', 'high']
    >>> Model("sasrec", epochs=5).set_params(dim=32)
    Model('sasrec', dim=32, epochs=5)
    """

    def __init__(self, model: RunConfig | str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._session: Session | None = None
        self._log: EventLog | None = None
        self._schema = Schema()
        self._remove_files: Callable[[], object] | None = None
        with api_words():
            self.config = _read_config(model)
        self.set_params(**settings)

    # ---- settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the name of the model and all settings, as the constructor takes them; `deep` has no effect."""
        return {"model": self.config.name} | _settings(self.config)

    @api_words()
    def set_params(self, **settings: Any) -> Self:
        """Changes settings by name and returns self; they take effect at the next `fit`.

        With `model`, all other settings become the defaults of that model first.
        """
        config = self.config
        if "model" in settings:
            config = _read_config(settings.pop("model"))
        for name, value in settings.items():
            key = resolve_key(config, name, f"setting '{name}'")
            if key == "name":
                raise UsageError("'name' is not a setting; the model is chosen with model=….")
            config = set_key(config, key, "none" if value is None else value, type(self).__name__)
        self.config = config
        return self

    def __repr__(self) -> str:
        defaults, name = _settings(recipe_config(self.config.name)), self.config.name
        arguments = [] if isinstance(self, Edge) and name == default_model() else [repr(name)]
        arguments += [f"{key}={value!r}" for key, value in _settings(self.config).items() if value != defaults[key]]
        text = f"{type(self).__name__}({', '.join(arguments)})"
        if self._session is None:
            return text
        known = f"{len(self._session.users):,} users and {len(self._session.items):,} items"
        until = format_timestamp(self._session.coverage.last_time)
        return f"{text}: {self._session.coverage.events:,} events of {known} until {until}"

    # ---- training and evaluation

    @api_words()
    def fit(
        self,
        data: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        label: str | None = None,
        features: Sequence[str] = (),
        item_features: Sequence[str] = (),
        item_table: Any = None,
        user_features: Sequence[str] = (),
        user_table: Any = None,
        time_unit: str = "auto",
        max_bad: float = DEFAULT_MAX_BAD,
        quiet: bool = True,
    ) -> Self:
        """Trains on a log, a log folder or a data frame, and returns self.

        A data frame is a pandas or polars frame, an Arrow table or a dictionary of columns; `user`, `item`, `time`,
        `label`, `features` (numbers) and `item_features` (categories) name its columns, as in `dynedge prepare`; the
        first three are recognised by usual names (user_id, userId, customer; item, product; time, date). At most the
        share `max_bad` of its rows may be invalid; they are left out. `item_table`, a frame or a file with
        the column `item`, describes the items: answers show its columns, and rules of `recommend` can use them.
        `user_table`, with the column `user`, describes the users: models read its columns `user_features`.

        The best epoch by validation MRR is kept; the validation and test events then update the states.
        """
        if is_frame(data):
            data = as_arrow(data)  # once: a stream of record batches cannot be read again
            user = infer_column(data, "user", Schema.user, USER_NAMES) if user is None else user
            item = infer_column(data, "item", Schema.item, ITEM_NAMES) if item is None else item
            time = infer_column(data, "time", Schema.time, TIME_NAMES) if time is None else time
        schema = Schema(
            Schema.user if user is None else str(user),  # a frame without names has the columns 0, 1, …
            Schema.item if item is None else str(item),
            Schema.time if time is None else str(time),
            label,
            None,
            _names(features),
            _names(item_features),
            time_unit=time_unit,
        )
        tables = {"item_table": item_table, "user_table": user_table, "user_features": _names(user_features)}
        if (schema != Schema() or item_table is not None or user_table is not None) and not is_frame(data):
            raise UsageError("columns and tables go with data frames only: a log has its own already.")
        folder = Path(tempfile.mkdtemp(prefix="dynedge-"))
        remove_files = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        try:
            log = _open_data(data, schema, folder / "log", max_bad, quiet, **tables)
            with RunFolder(folder / "run") as run:
                train_run(run, self.config, log, quiet=quiet)
            session = Session.open(folder / "run")
            session.advance_to(log, quiet=quiet)
            _ = session.item_metadata.columns  # read now: answers may outlive the model and its files
        except BaseException:
            remove_files()
            raise
        if self._remove_files is not None:
            self._remove_files()
        self._session, self._log, self._schema, self._remove_files = session, log, schema, remove_files
        return self

    @api_words()
    def evaluate(
        self, data: Any = None, *, protocol: str = "full", lists: bool = False, quiet: bool = True
    ) -> Evaluation:
        """Returns the ranking metrics on validation and test events, with confidence intervals.

        `data` is the log or the frame the model was fitted on; needed only after `load`, if it is not where it was.
        `protocol` is as in `dynedge evaluate`; `lists` adds the metrics of recommended lists (coverage, diversity and
        others), by a second pass. Events applied by `update` do not change the result.
        """
        ranks = self._ranks(data, protocol, quiet)
        valid, test = (ranks.summary(part) for part in PARTS)
        if lists:
            test |= evaluate_lists(ranks, quiet=quiet)
        return Evaluation(ranks.config.name, protocol, ranks.log.num_items, valid, test)

    def _ranks(self, data: Any, protocol: str, quiet: bool) -> RunRanks:
        session = self._fitted()
        if data is None:
            return evaluate_run(session.folder, self._log, protocol=protocol, quiet=quiet)
        with tempfile.TemporaryDirectory(prefix="dynedge-") as folder:
            log = _open_data(data, self._schema, Path(folder) / "log", DEFAULT_MAX_BAD, quiet)
            return evaluate_run(session.folder, log, protocol=protocol, quiet=quiet)

    # ---- queries

    @api_words()
    def recommend(
        self,
        users: ExternalId | Iterable[ExternalId],
        k: int = 10,
        time: Timestamp | None = None,
        filter_seen: bool = False,
        *,
        allow: Values | None = None,
        deny: Values | None = None,
        boost: Mapping[str, Mapping[Any, float]] | None = None,
        max_per: Mapping[str, int] | None = None,
        min_score: float | None = None,
        diversity: float = 0.0,
    ) -> Recommendations:
        """Returns the k best items for each user; unknown users get the most popular items.

        `users` are ids of the original data, `time` is the time of the request (default: that of the newest event),
        and `filter_seen` hides items that the user has already seen. `allow` and `deny` are lists of items, or of
        values by a column that describes items: {"genre": ["folk"]}. `boost` is added to scores, by column and value
        (column "item_id" for items); `max_per` limits how many items share a value; `diversity` (0 to 1) is the
        weight of diversity in the list.
        """
        session = self._fitted()
        rules = Rules.of(
            filter_seen=filter_seen,
            allow=allow,
            deny=deny,
            boost=boost,
            max_per=max_per,
            min_score=min_score,
            diversity=diversity,
        )
        return recommend(session, distinct_users(session, _ids("users", users)), k, self._seconds(time), rules)

    @api_words()
    def explain(
        self,
        user: ExternalId,
        items: ExternalId | Iterable[ExternalId] | None = None,
        k: int = 10,
        time: Timestamp | None = None,
    ) -> Frame:
        """Returns where the scores of items for a user come from; by default of the k recommended ones.

        Columns: item_id, score, the share of each source of the score, and similar_to: of the user's last items the
        one that the item occurs with most.
        """
        session = self._fitted()
        session.require(Explainable, "does not explain its scores")
        seconds = self._seconds(time)
        if items is None:
            (answer,) = recommend(session, [plain_id(user)], k, seconds)
        else:
            answer = _scored(
                session,
                find_row(session, 0, user),
                [find_row(session, 1, one) for one in _ids("items", items)],
                seconds,
            )
        records = explained(session, answer, seconds)["items"]
        sources = dict.fromkeys(name for one in records for name in one["explanation"]["shares"])
        columns: dict[str, list[Any]] = {name: [one[name] for one in records] for name in ("item_id", "score")}
        columns |= {name: [one["explanation"]["shares"].get(name, 0.0) for one in records] for name in sources}
        return Frame(columns | {"similar_to": [one["explanation"]["similar_to"] for one in records]})

    @api_words()
    def similar_items(self, item: ExternalId, k: int = 10) -> Frame:
        """Returns the k items with the most similar vectors (item_id, score: cosine of the centred vectors)."""
        check_k(k)
        records = similar_items(self._fitted(), item, k)["items"]
        return Frame({name: [one[name] for one in records] for name in ("item_id", "score")})

    @api_words()
    def embed(
        self, side: Literal["user", "item"] = "item", ids: ExternalId | Iterable[ExternalId] | None = None
    ) -> Frame:
        """Returns the current vectors of users or of items: columns user_id or item_id, and vector.

        `frame["vector"]` is a NumPy array float32[n, d]. By default those of all users or items.
        """
        if side not in SIDES:
            raise UsageError(f"side {side!r} should be 'user' or 'item'.")
        session, number = self._fitted(), SIDES.index(side)
        index = (session.users, session.items)[number]
        rows = range(len(index)) if ids is None else [find_row(session, number, one) for one in _ids("ids", ids)]
        vectors = session.vectors()[number][np.array(rows, np.int64)]
        import pyarrow as pa

        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors[:1].size or 1)
        return Frame({f"{side}_id": index.take(rows), "vector": lists})

    # ---- events and files

    @api_words()
    def update(self, events: Any, columns: tuple[str, str, str] | None = None) -> Self:
        """Updates the states with new events, without training, and returns self.

        `events` is a log, a data frame with these columns (default: those of `fit`), or three sequences: users, items
        and times. New users and items get rows, as in the service. Events that are known already are skipped: of a
        log, those up to the newest applied event; else those older than it, and those applied before at its time.
        """
        session, schema = self._fitted(), self._schema
        log = session.encode(events, columns or (schema.user, schema.item, schema.time))
        if isinstance(events, EventLog):
            session.advance_to(log)
        else:
            session.update(log)
        return self

    @api_words()
    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes a run folder, atomically; the commands can read it too."""
        self._fitted().save(_path(path), force=force)

    @classmethod
    @api_words()
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a run folder that `save` or `dynedge train` wrote; the log is not needed."""
        session = Session.open(_path(path))
        model = cls(session.config)
        model._session = session
        return model

    def _seconds(self, time: Timestamp | None) -> float | None:
        return None if time is None else parse_timestamp(time, self._fitted().time_unit)

    def _fitted(self) -> Session:
        if self._session is None:
            raise UsageError("this model is not fitted: call fit with a log, or load a run.")
        return self._session


class Edge(Model):
    """Model with the default model, `edge`: recurrent user and item states, fused with a count memory.

    >>> Edge(epochs=5, dim=32)
    Edge(dim=32, epochs=5)
    """


@api_words()
def compare(*models: Model, protocol: str = "full", lists: bool = False, quiet: bool = True) -> Comparison:
    """Compares fitted models on the test events of the log that they were all fitted on.

    `lists` adds the metrics of recommended lists (coverage, diversity and others).

    >>> frame = {"user_id": [0, 1] * 10, "item_id": [0, 1] * 10, "timestamp": list(range(20))}
    >>> compare(Model("popular").fit(frame), Model("recent").fit(frame)).best
    'recent'
    """
    if not all(isinstance(model, Model) for model in models) or len(set(models)) < max(len(models), 2):
        raise UsageError("compare takes two or more fitted models, each of them once: compare(one, other).")
    check_comparable([model._fitted().folder for model in models])
    evaluated = [model._ranks(None, protocol, quiet) for model in models]
    names: dict[str, str] = {}
    for ranks in evaluated:
        same = sum(name.split(" (")[0] == ranks.config.name for name in names.values())
        names[str(ranks.run)] = f"{ranks.config.name} ({same + 1})" if same else ranks.config.name
    compared = comparison(evaluated, lists=lists, quiet=quiet)["runs"]
    return Comparison([run | {"name": names[run["run"]]} for run in compared])


def _open_data(data: Any, schema: Schema, out: Path, max_bad: float, quiet: bool, **tables: Any) -> EventLog:
    """Returns a log, opened if `data` is a folder, or prepared at `out` if it is a data frame."""
    if is_frame(data):
        log = prepare(data, out, schema, max_bad=max_bad, quiet=quiet, **tables)
        if mixed := mixed_time_units(log):
            warnings.warn(mixed, stacklevel=4)
        return log
    if isinstance(data, EventLog):
        return data
    if isinstance(data, str | os.PathLike):
        return read_log(data)
    raise UsageError(f"the data should be a log, a log folder or a data frame, not a {type(data).__name__}.")


@torch.no_grad()
def _scored(session: Session, user: int, items: list[int], time: float | None) -> UserRecommendations:
    """Returns given items of a user with their scores, in the given order."""
    rows = torch.tensor([items], dtype=torch.int64, device=session.device)
    users = torch.tensor([user], device=session.device)
    times = torch.tensor([query_time(session, time)], dtype=torch.float64, device=session.device)
    scores = np.empty(0, np.float32)
    if items:
        scores = session.model.score_query(users, times, rows, session.state)[0].float().cpu().numpy()
    return UserRecommendations(
        session.users[user], user, np.array(items, np.int64), scores, session.items, session.item_metadata
    )


def _ids(name: str, given: ExternalId | Iterable[ExternalId]) -> list[Any]:
    """Returns one id or several as a list."""
    if isinstance(given, str | bytes) or np.isscalar(given):
        return [given]
    if not isinstance(given, Iterable):
        raise UsageError(f"{name} {given!r:.40} should be an id, or several: texts or integers.")
    return list(given)


def _path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"the path should be a text or a Path, not {path!r:.40}.")
    return Path(path)


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of columns; one name alone is one column."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _settings(config: RunConfig) -> dict[str, Any]:
    """Returns all settings by their short names; where two have the same, the model's."""
    settings: dict[str, Any] = {}
    for key, value in flatten(config).items():
        if key != "name":
            settings.setdefault(key.split(".")[-1], value)
    return settings


def _read_config(model: RunConfig | str | os.PathLike[str] | None) -> RunConfig:
    if isinstance(model, RunConfig):
        return model
    if model is None:
        return recipe_config(default_model())
    if isinstance(model, str) and not model.endswith(".toml"):
        return recipe_config(model, "dynedge")
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"the model should be a name, a config.toml or a RunConfig, not {model!r:.40}.")
    return parse_config(read_config_file(Path(model)), str(model))
