"""The one error of data that is missing, unreachable or unreadable."""


class DataError(ValueError):
    """Data that is missing, unreachable or unreadable, in one sentence that says what to do."""
