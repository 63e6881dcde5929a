"""Sockets of both servers send small answers at once; otherwise each waits 40 ms for the client's acknowledgment."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from collage.service import app
from collage.serving import server


@pytest.mark.parametrize("listen", [app._listen, server._listen])
def test_accepted_sockets_do_not_wait(listen: Callable[[str, int], socket.socket]) -> None:
    listener = listen("127.0.0.1", 0)

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(
                writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            )
            writer.close()

        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            no_delay = await found
            writer.close()
            await writer.wait_closed()
            return no_delay

    assert asyncio.run(accepted())
