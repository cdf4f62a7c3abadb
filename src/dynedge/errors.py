"""The errors a person sees: one sentence each, and the exit code the command line gives them."""


class DynedgeError(Exception):
    """Something the user can mend. The message is one sentence: what is wrong, where, and what to do."""

    exit_code = 1


class UsageError(DynedgeError):
    """A flag or an argument is off."""

    exit_code = 2


class DataError(DynedgeError):
    """A file or a log is missing, damaged or not what was asked for."""

    exit_code = 3
