"""Which connection makes room for another."""

import asyncio
from typing import Any

from eldr.config import load_config
from eldr.metrics.prometheus import RouterMetrics
from eldr.proxy.answers import error_answer
from eldr.proxy.clients import Clients
from eldr.proxy.front import ClientConnection
from eldr.proxy.request import Request
from eldr.proxy.response import Response


class FakeTransport(asyncio.Transport):
    """Sends nothing, so that what is written stays unsent until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent, self.closed = 0, False

    def write(self, data: Any) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def not_found(request: Request) -> Response:  # noqa: ARG001
    return error_answer(404, "nothing here", "not_found_error")


def clients(connections: int) -> Clients:
    workers = {"prefill": ["http://p"], "decode": ["http://d"]}
    return Clients(
        not_found,
        load_config(None, {**workers, "limits": {"connections": connections}}),
        RouterMetrics(),
    )


def connected(to: Clients) -> tuple[ClientConnection, FakeTransport]:
    connection, transport = to.connection(), FakeTransport()
    connection.connection_made(transport)
    return connection, transport


async def answered(connection: ClientConnection, transport: FakeTransport) -> None:
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(20):
        while not transport.unsent:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_an_answer_that_is_not_sent_yet_is_not_cut_off_to_make_room() -> None:
    some = clients(2)
    first, sends = connected(some)
    await answered(first, sends)
    _, idle = connected(some)
    connected(some)
    assert (sends.closed, idle.closed) == (False, True)


async def test_nobody_makes_room_while_all_answers_are_being_sent() -> None:
    some = clients(1)
    first, sends = connected(some)
    await answered(first, sends)
    surplus, unheard = connected(some)
    assert (sends.closed, unheard.closed) == (False, False)
    surplus.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    await asyncio.sleep(0)
    assert some.metrics.client_faults.labels("too_many_connections")._value.get() == 1
    sends.unsent = 0
    connected(some)
    assert sends.closed


async def test_a_refusal_that_is_not_sent_yet_is_not_cut_off() -> None:
    some = clients(1)
    refused, transport = connected(some)
    refused.data_received(b"no HTTP\r\n\r\n")
    assert transport.closed
    transport.closed, transport.unsent = False, 0  # as if all were sent, but the connection not yet gone
    connected(some)
    assert not transport.closed
