"""Messages of errors in the words of the Python API: the layers below speak of flags and folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dynedge.errors import DynedgeError

# Messages in the words of the command line -> in those of the Python API. Any other flag loses its dashes (max_bad).
COMMAND_LINE = (
    (r"^\S*/dynedge-\w+/run: ", ""),  # the folder of a fitted model
    (r"^\S+ was trained on \S+ and \S+ on \S+: only runs", "the models were fitted on different data: only models"),
    (r"^\S+ has the split (\S+) and \S+ has (\S+): only runs", r"the models have the splits \1 and \2: only models"),
    (r"train it with: dynedge train \S+ --split (\S+)", r"fit it with split='\1'"),
    (r"; --resume continues from the last good checkpoint", ""),
    (r"create one with: dynedge train LOG --out \S+", "create one with: Model(…).fit(log).save(path)"),
    (r"make a log with: dynedge prepare FILE --out \S+", "make a log with: dynedge.prepare(files, out)"),
    (r"name it: dynedge evaluate \S+ LOG", "pass it: evaluate(log)"),
    (r" All are listed in \S*/dynedge-\w+/\S+; no log was written\.", ""),
    (r"with --user-col", "with user='customer'"),
    (r"\S*/dynedge-\w+/run\b", "the model"),
    (r"\S*/dynedge-\w+/log\b", "the data"),
    (r"--out\b", "path"),
    (r"--force\b", "force=True"),
)


@contextmanager
def api_words() -> Iterator[None]:
    """Rewrites the messages of errors from the words of the command line to those of the Python API."""
    try:
        yield
    except DynedgeError as error:
        text = str(error)
        for pattern, replacement in COMMAND_LINE:
            text = re.sub(pattern, replacement, text)
        text = re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), text)
        error.args = (text,)
        raise
