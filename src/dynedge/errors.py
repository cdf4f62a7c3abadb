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


class CommonError(DynedgeError):
    """An error that all processes of a group have in common, in one that need not report it: the first does."""

    def __init__(self, error: DynedgeError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code
