"""Work of seconds in a thread of its own, which the end of the process does not wait for.

The event loop's own pool is for what takes milliseconds: whoever ends the loop waits for its threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises. It goes on where nobody waits for it any more, until it or the process ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if future.done() else settle())

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            raised = error
            tell(lambda: future.set_exception(raised))
        else:
            tell(lambda: future.set_result(result))

    threading.Thread(target=run, name="exactspec-read", daemon=True).start()
    return await future
