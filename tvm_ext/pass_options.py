# SPDX-License-Identifier: Apache-2.0
"""Functions that hand their options on to a pass, and show them as their own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options_of(
    make_pass: Callable[..., Any], *, without: Collection[str] = ()
) -> Callable[[Function], Function]:
    """Return a decorator for a function whose ``**options`` are those of a pass but for `without`.

    The options stand in one place, the signature of the pass; ``help`` shows them for the function
    too, and one that the pass does not have is an error when the function is called.
    """

    def decorate(function: Function) -> Function:
        signature = _joined(function, make_pass, without)

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            try:
                signature.bind(*args, **options)
            except TypeError as error:
                name = function.__name__
                raise TypeError(f"{name}: {error}; it takes {name}{signature}") from None
            return function(*args, **options)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Function, call)

    return decorate


def _joined(
    function: Callable[..., Any], make_pass: Callable[..., Any], without: Collection[str]
) -> inspect.Signature:
    """Return the signature of `function`, its ``**options`` written out."""
    own = inspect.signature(function)
    named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    taken = {*without, *(parameter.name for parameter in named)}
    handed_on = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(make_pass).parameters.values()
        if parameter.name not in taken
    ]
    return own.replace(parameters=[*named, *handed_on])
