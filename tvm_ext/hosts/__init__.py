# SPDX-License-Identifier: Apache-2.0
"""Our planners in other compilers: an adapter for each, which imports its host when it is called.

It reads the host's buffers as a `Problem` and writes the offsets back, as ``docs/hosts.md`` shows.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """Let another framework print, warn and log nothing but errors while a block runs."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
