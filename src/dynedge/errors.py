"""Errors that a user can fix. Each message is one sentence: what is wrong, where, and what to do."""


class DynedgeError(Exception):
    """Base class; `exit_code` is the exit code of the command line."""

    exit_code = 1


class UsageError(DynedgeError):
    """A wrong flag or argument."""

    exit_code = 2


class DataError(DynedgeError):
    """A file or folder that is missing, damaged or of the wrong kind."""

    exit_code = 3
