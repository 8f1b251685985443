"""The parser of every command: a wrong call gets one sentence."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, NoReturn

import jsonargparse

LONGEST = 500  # characters of a sentence
LARGEST = 2**63 - 1  # what a tensor's int64 holds
FORCE = "Replace files that are not earlier results of this command."


class ArgumentParser(jsonargparse.ArgumentParser):
    """jsonargparse's, whose complaints are a `ValueError` of one line instead of a usage over several lines."""

    def parse_args(self, *args: Any, **kwargs: Any) -> jsonargparse.Namespace:  # type: ignore[override]
        """Parse as usual, and refuse what is empty, named pipes instead of files, and numbers that no tensor can hold.

        Raises:
            ValueError: if the call is wrong.
        """
        for given in args[0] if args and args[0] else ():
            _refuse_pipe(given)
        return self._checked(super().parse_args(*args, **kwargs))

    def parse_object(self, *args: Any, **kwargs: Any) -> jsonargparse.Namespace:
        """Parse the options of a file or of keywords in the same way.

        Raises:
            ValueError: if an option is wrong.
        """
        return self._checked(super().parse_object(*args, **kwargs))

    def _checked(self, parsed: jsonargparse.Namespace) -> jsonargparse.Namespace:
        for action in self._actions:
            value = parsed.get(action.dest)
            given = value if isinstance(value, (list, tuple)) else [value]
            name = (action.option_strings or [str(action.metavar or action.dest)])[0].removesuffix(".name")
            if "" in given and value != action.default:
                raise ValueError(f"{name} is empty: give it a value, or leave it out; {self.prog} --help shows how")
            if any(isinstance(each, int) and abs(each) > LARGEST for each in given):
                raise ValueError(f"{name} must be a whole number below 2**63; {self.prog} --help shows how")
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Refuse the call.

        Raises:
            ValueError: always.
        """
        said = re.sub(r"<class '(\w+)'>", r"\1", " ".join(message.split()))
        if len(said) > LONGEST:
            said = f"{said[:LONGEST]} ..."
        raise ValueError(f"{said.rstrip('. ')}; {self.prog} --help shows the options") from ex


def _refuse_pipe(given: str) -> None:
    """Refuse a named pipe: a group of options may be a file of options, and a pipe would be read for ever."""
    name = given.partition("=")[2] if given.startswith("-") else given
    try:
        is_pipe = stat.S_ISFIFO(os.stat(name).st_mode)
    except (OSError, ValueError):  # there is no such file, which the option itself refuses where it needs one
        return
    if is_pipe and not name.startswith("/dev/"):  # the shell's <(command) is /dev/fd/63, which comes to an end
        raise ValueError(f"{name} is a named pipe: give a file")
