"""Connections to workers: every way in which an answer can come, break off, or be kept waiting."""

import asyncio
import gzip
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from multidict import CIMultiDict

from eldr.config import Config, WorkerConfig
from eldr.pool import Worker
from eldr.proxy import upstream as upstream_module
from eldr.proxy.headers import field_lines
from eldr.proxy.upstream import RefusedError, Upstream
from eldr.proxy.worker_answer import MAX_HEAD_BYTES, BrokenOffError
from support.clock import SkippingClock
from support.waiting import HANG_S

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"
GZIPPED = gzip.compress(b"x", mtime=0)  # the same in all runs, as names of tests must be
GZIPPED_HELLO = gzip.compress(b"hello", mtime=0)


@asynccontextmanager
async def worker(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Worker]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield Worker("d0", f"http{'s' if tls else ''}://localhost:{port}")


@asynccontextmanager
async def upstream(**settings: float) -> AsyncIterator[Upstream]:
    nobody = (WorkerConfig("x", "http://x"),)
    made = Upstream(Config(prefill=nobody, decode=nobody, **settings))
    try:
        yield made
    finally:
        await made.close()


def answering(*pieces: bytes, close: bool = False) -> Serve:
    """A worker that answers each request with some pieces, a moment apart."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.005)
            if close:
                break
        writer.close()

    return serve


async def read_request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        return head + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def ask(made: Upstream, of: Worker) -> tuple[int, bytes]:
    async with made.post(of, "/v1/completions", (b"{}",), field_lines(CIMultiDict({"A": "b"}))) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize(
    "pieces",
    [
        (OK + b"Content-Length: 5\r\n\r\nhello",),
        (b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 5\r\n\r\nhello"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe", b"\r\n3\r\nllo\r\n", b"0\r\n\r\n"),
        tuple(bytes([byte]) for byte in OK + b"Content-Length: 5\r\n\r\nhello"),
        (
            OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(GZIPPED_HELLO), GZIPPED_HELLO),
        ),
    ],
)
async def test_whole_answers_come_in_any_way_and_leave_the_connection(pieces: tuple[bytes, ...]) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(*pieces)(reader, writer)

    async with worker(serve) as of, upstream() as made:
        for _ in range(3):
            assert await ask(made, of) == (200, b"hello")
    assert connections == 1


async def test_a_body_that_comes_with_its_head_may_be_large() -> None:
    body = b"x" * (4 * MAX_HEAD_BYTES)
    whole = OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    async with worker(answering(whole)) as of, upstream() as made:
        assert await ask(made, of) == (200, body)


async def test_an_answer_that_lasts_until_the_connection_ends() -> None:
    async with worker(answering(OK + b"\r\nhel", b"lo", close=True)) as of, upstream() as made:
        assert await ask(made, of) == (200, b"hello")
        assert await ask(made, of) == (200, b"hello")


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        (b"", "closed the connection"),
        (OK + b"Content-Length: 9\r\n\r\nhello", "closed the connection"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe", "closed the connection"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhe", "malformed"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "malformed"),
        (OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "malformed"),
        (b"SSH-2.0-OpenSSH\r\n", "malformed"),
        (OK + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx", "malformed.*not asked for"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "malformed"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\n" + GZIPPED[:9], "cut off"),
        (OK + b"X: " + b"x" * MAX_HEAD_BYTES, "bytes of headers"),
        (b"HTTP/1.1 103 Hints\r\n\r\n" * 4_000, "bytes of headers"),
    ],
)
async def test_answers_that_break_off_say_why(piece: bytes, reason: str) -> None:
    async with worker(answering(piece, close=True)) as of, upstream() as made:
        with pytest.raises(BrokenOffError, match=f"worker d0 .* broke off: .*{reason}"):
            await ask(made, of)


async def test_a_silent_worker_breaks_off_after_the_idle_time() -> None:
    async with (
        upstream(idle_timeout_s=0.1) as made,
        worker(answering(OK + b"Content-Length: 5\r\n\r\nhel")) as of,
    ):
        with pytest.raises(BrokenOffError, match=r"sent nothing for 0\.1 s"):
            await ask(made, of)


async def test_a_slow_worker_does_not_break_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SkippingClock(monkeypatch, "eldr.proxy.connection.monotonic")

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in (OK + b"Content-Length: 40\r\n\r\n", *[b"x"] * 40):
            clock.skip(60)
            writer.write(piece)
            await asyncio.sleep(0.005)
        writer.close()

    async with upstream(idle_timeout_s=100) as made, worker(slowly) as of:
        assert await ask(made, of) == (200, b"x" * 40)
    assert clock.skipped_s > 20 * 100


async def test_a_connection_that_closes_while_its_answer_is_paused_does_not_stay_paused() -> None:
    """Whoever reads would ask again and again whether it may go on, and never let the event loop run."""
    async with (
        worker(answering(OK + b"Transfer-Encoding: chunked\r\n\r\n")) as w,
        upstream() as made,
        made.post(w, "/v1/completions", (b"{}",), field_lines(CIMultiDict())) as answer,
    ):
        answer.pause()
        assert answer.paused
        answer._transport.abort()  # as TLS does before it tells that the connection is lost
        answer.resume()
        assert not answer.paused
        with pytest.raises(BrokenOffError):
            await answer.read()


async def test_a_worker_that_is_not_there_refuses() -> None:
    async with worker(answering()) as of:
        pass
    async with upstream() as made:
        with pytest.raises(RefusedError, match=r"worker d0 .* cannot be reached: Connection refused"):
            await ask(made, of)


async def test_leaving_early_closes_the_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK + b"Content-Length: 5\r\n\r\nhel")
        await reader.read()
        gone.set()
        writer.close()

    async with worker(serve) as of, upstream() as made:
        async with made.post(of, "/v1/completions", (b"{}",), field_lines(CIMultiDict())) as answer:
            assert answer.status == 200
        async with asyncio.timeout(HANG_S):
            await gone.wait()


async def test_idle_connections_end_before_the_workers_end_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "KEEP_ALIVE_S", 0.05)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(OK + b"Content-Length: 0\r\n\r\n")(reader, writer)
        ended.set()

    async with worker(serve) as of, upstream() as made:
        await ask(made, of)
        async with asyncio.timeout(HANG_S):
            await ended.wait()
        assert not made._idle


async def test_a_header_cannot_begin_another_line() -> None:
    async with worker(answering()) as of, upstream() as made:
        with pytest.raises(ValueError, match="line end"):
            made.post(
                of,
                "/v1/completions",
                (b"{}",),
                field_lines(CIMultiDict({"A": "b\r\nX-Data-Parallel-Rank: 1"})),
            )


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


async def test_workers_behind_tls_are_verified(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    async with worker(answering(OK + b"Content-Length: 5\r\n\r\nhello"), tls) as of:
        async with upstream() as made:
            with pytest.raises(RefusedError, match="certificate verify failed"):
                await ask(made, of)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        async with upstream() as made:
            assert await ask(made, of) == (200, b"hello")
