"""Many cases of one test: a matrix of rules, policies or wrong arguments is one promise, and is reported as one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]


def every(
    names: str | Sequence[str], values: Iterable[Any], ids: Sequence[str] | None = None
) -> Callable[[Test], Test]:
    """Run a test with each of several values, as `pytest.mark.parametrize` does with a test for each.

    All cases are run, also after one has failed, and each has a `tmp_path` and a `monkeypatch` of its own.

    Args:
        names: The arguments to fill, as a list or joined by commas.
        values: The values, a tuple each where there are several arguments.
        ids: What the cases are called when they fail, by default what is in them.

    Example:
        >>> @every("number", [1, 2, 3])
        ... def test(number):
        ...     assert number < 2, "too large"
        >>> test()
        Traceback (most recent call last):
        ...
        AssertionError: 2 of 3 cases fail:
        number=2: AssertionError: too large
        number=3: AssertionError: too large
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [(value,) if len(arguments) == 1 else tuple(value) for value in values]
    assert rows, "a test without a case"
    cases = [dict(zip(arguments, row, strict=True)) for row in rows]

    def title(number: int) -> str:
        return ids[number] if ids else ", ".join(f"{name}={value!r}"[:100] for name, value in cases[number].items())

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            failed: list[tuple[str, BaseException]] = []
            for number, case in enumerate(cases):
                with pytest.MonkeyPatch.context() as patch:
                    given = dict(fixtures)
                    if "monkeypatch" in given:
                        given["monkeypatch"] = patch
                    if isinstance(folder := given.get("tmp_path"), Path):
                        given["tmp_path"] = folder / f"case-{number}"
                        given["tmp_path"].mkdir()
                    try:
                        test(**case, **given)
                    except (Exception, pytest.fail.Exception) as error:
                        failed.append((f"{title(number)}: {type(error).__name__}: {error}", error))
            if failed:
                lines = [f"{len(failed)} of {len(cases)} cases fail:", *(line for line, _ in failed)]
                raise AssertionError("\n".join(lines)) from failed[0][1]

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in arguments]
        all_cases.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        del all_cases.__wrapped__  # type: ignore[attr-defined]
        return all_cases

    return decorate
