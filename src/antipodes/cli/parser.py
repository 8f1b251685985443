"""The parser of every command: a wrong call gets one sentence."""

from __future__ import annotations

import re
from typing import NoReturn

import jsonargparse

LONGEST = 500


class ArgumentParser(jsonargparse.ArgumentParser):
    """jsonargparse's, whose complaints are a `ValueError` of one line instead of a usage over several lines."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Refuse the call.

        Raises:
            ValueError: always.
        """
        said = re.sub(r"<class '(\w+)'>", r"\1", " ".join(message.split()))
        if len(said) > LONGEST:
            said = f"{said[:LONGEST]} ..."
        raise ValueError(f"{said.rstrip('. ')}; {self.prog} --help shows the options") from ex
