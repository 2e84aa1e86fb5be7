"""The one error type of the library."""


class SparseError(ValueError):
    """Something the caller can put right: the message says what was wrong, where, and what to do.

    Messages never contain a key, a concept's terms or a record's text. Command-line jobs print the
    message alone, without a traceback.
    """
