"""Who gets in, what reaches an engine, and requests that two servers could read as two different ones."""

import json
import logging
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from eldr.config import load_config
from eldr.errors import ConfigError
from eldr.proxy.keys import client_keys, worker_authorization
from eldr.proxy.tls import server_tls, worker_tls
from eldr.settings_front import SecurityConfig
from support.raw import exchange, post, status_of
from support.stack import CHAT, COMPLETIONS, Stack, stack

PROMPT = {"prompt": "hello world", "max_tokens": 2}
BODY = json.dumps(PROMPT).encode()
SIZE = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
AS_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

SMUGGLED = {
    "both lengths": HEAD + SIZE + CHUNKED + b"\r\n" + AS_CHUNKS,
    "both lengths, the other way round": HEAD + CHUNKED + SIZE + b"\r\n" + AS_CHUNKS,
    "two different lengths": HEAD + SIZE + b"Content-Length: 0\r\n\r\n" + BODY,
    "two equal lengths": HEAD + SIZE + SIZE + b"\r\n" + BODY,
    "a list of lengths": HEAD + SIZE.strip() + b", 0\r\n\r\n" + BODY,
    "a length with a sign": HEAD + SIZE.replace(b": ", b": +") + b"\r\n" + BODY,
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n" + BODY,
    "a length that is no number": HEAD + b"Content-Length: 0x20\r\n\r\n" + BODY,
    "chunked twice": HEAD + CHUNKED + CHUNKED + b"\r\n" + AS_CHUNKS,
    "chunked, but not last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + AS_CHUNKS,
    "an unknown transfer encoding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + AS_CHUNKS,
    "a folded header": HEAD + b"X-A: 1\r\n Content-Length: 0\r\n" + SIZE + b"\r\n" + BODY,
    "a blank before the colon": HEAD + SIZE.replace(b":", b" :") + b"\r\n" + BODY,
    "a bare carriage return": HEAD + b"X-A: 1\rContent-Length: 0\r\n" + SIZE + b"\r\n" + BODY,
    "a zero byte": HEAD + b"X-A: 1\x00\r\n" + SIZE + b"\r\n" + BODY,
    "a chunk size that is no number": HEAD + CHUNKED + b"\r\nxyz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk longer than its size": HEAD + CHUNKED + b"\r\n3\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a negative chunk size": HEAD + CHUNKED + b"\r\n-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk size with a prefix": HEAD + CHUNKED + b"\r\n0x%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
}


@pytest.mark.parametrize("case", SMUGGLED)
async def test_a_request_that_can_be_read_in_two_ways_is_refused(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stack() as s:
        with caplog.at_level(logging.INFO):
            answer = await exchange(s.url, SMUGGLED[case] + HIDDEN)
        assert status_of(answer) == 400
        assert answer.count(b"HTTP/1.") == 1, "what follows is not taken for a request"
        assert not s.prefill[0].received
        assert "Traceback" not in caplog.text
        assert sum(record.name.startswith("aiohttp") for record in caplog.records) == 0
        assert (await s.post(**PROMPT)).status == 200


async def test_a_get_with_a_body_hides_no_second_request() -> None:
    async with stack() as s:
        head = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        answer = await exchange(s.url, head % len(HIDDEN) + HIDDEN)
        assert (status_of(answer), answer.count(b"HTTP/1.")) == (200, 1)


async def test_hop_by_hop_headers_and_those_that_steer_an_engine_end_at_the_router() -> None:
    gone = {
        "Connection": "close, X-Mine",
        "X-Mine": "1",
        "Keep-Alive": "timeout=5",
        "TE": "trailers",
        "Upgrade": "websocket",
        "Proxy-Authorization": "Basic eDp5",
        "X-data-parallel-rank": "3",
        "X-Data-Parallel-Other": "3",
        "x-eldr-decode-worker": "d1",
    }
    async with stack() as s:
        for path, body in ((COMPLETIONS, PROMPT), (CHAT, {"messages": [], "max_tokens": 2})):
            answer = await exchange(
                s.url, post(body, *(f"{key}: {value}" for key, value in gone.items()), path=path)
            )
            assert status_of(answer) == 200
        for engine in (s.prefill[0], s.decode[0]):
            for received in engine.received:
                assert not {name.lower() for name in received.headers} & {name.lower() for name in gone}
                assert received.headers.getall("Host") == [engine.url.removeprefix("http://")]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/responses", "/v1/messages"])
async def test_a_clients_own_transfer_parameters_never_reach_an_engine(path: str) -> None:
    evil = {
        "do_remote_prefill": True,
        "remote_host": "evil",
        "remote_engine_id": "x",
        "remote_request_id": "y",
    }
    fields = {
        "kv_transfer_params": evil,
        "ec_transfer_params": evil,
        "vllm_xargs": {"kv_transfer_params": "evil"},
    }
    shape: dict[str, Any] = {"prompt": "x"} if path == COMPLETIONS else {"messages": [], "max_tokens": 2}
    async with stack() as s:
        shape = {"input": "x"} if path == "/v1/responses" else shape
        for extra in ({}, {"n": 2}):
            assert (await s.post(path, **shape, **fields, **extra)).status == 200
        requests = [request for engine in (*s.prefill, *s.decode) for request in engine.received]
        assert len(requests) >= 3
        assert all(b"evil" not in request.raw for request in requests)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text("first-secret\n\nsecond-secret\n")
    return str(file)


async def test_only_a_valid_key_gets_in(keys: str, caplog: pytest.LogCaptureFixture) -> None:
    async with stack(security={"api_keys": keys}) as s:
        for headers in (
            {},
            {"Authorization": "Bearer wrong-secret"},
            {"Authorization": "Bearer "},
            {"Authorization": "Basic first-secret"},
            {"Authorization": "first-secret"},
            {"x-api-key": "first-secre"},
        ):
            reply = await s.post(headers=headers, **PROMPT)
            assert (reply.status, reply.json["error"]["type"]) == (401, "authentication_error")
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert "secret" not in reply.text
        assert not s.prefill[0].received
        assert await s.metric("eldr_client_faults_total", kind="unauthorized") == 6
        for headers in (
            {"Authorization": "Bearer first-secret"},
            {"authorization": "bearer  second-secret"},
            {"x-api-key": "second-secret"},
        ):
            assert (await s.post(headers=headers, **PROMPT)).status == 200
        assert "secret" not in caplog.text


async def test_a_key_is_needed_for_all_but_what_a_cluster_asks(keys: str) -> None:
    async with stack(security={"api_keys": keys}) as s:
        for path in ("/health", "/ready", "/version", "/metrics"):
            assert (await s.get(path)).status == 200
        for path in (
            "/v1/models",
            "/v1/nothing",
            "/",
            "/tokenize",
            "/HEALTH",
            "//health",
            "/health/../v1/models",
        ):
            async with s.http.get(aiohttp.client.URL(s.url + path, encoded=True)) as answer:
                assert answer.status == 401


async def test_a_key_of_the_routers_own_goes_no_further(keys: str) -> None:
    headers = {"Authorization": "Bearer first-secret", "x-api-key": "first-secret"}
    async with stack(security={"api_keys": keys}) as s:
        assert (await s.post(headers=headers, **PROMPT)).status == 200
        async with s.http.get(s.url + "/v1/models", headers=headers) as answer:
            assert answer.status == 200
        await legs_show(s, None)


async def test_without_keys_the_clients_own_passes_to_engines() -> None:
    async with stack() as s:
        await s.post(headers={"Authorization": "Bearer mine"}, **PROMPT)
        await legs_show(s, "Bearer mine")


async def test_workers_are_shown_the_routers_key_for_them(keys: str, tmp_path: Path) -> None:
    (tmp_path / "worker").write_text("worker-secret\n")
    async with stack(security={"api_keys": keys, "worker_key": str(tmp_path / "worker")}) as s:
        await s.post(headers={"Authorization": "Bearer first-secret"}, **PROMPT)
        await legs_show(s, "Bearer worker-secret")


async def legs_show(s: Stack, authorization: str | None) -> None:
    for engine in (s.prefill[0], s.decode[0]):
        (received,) = engine.received
        assert received.headers.get("Authorization") == authorization
        assert "x-api-key" not in received.headers


def test_keys_come_from_the_environment_where_no_file_is_named(
    monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("ELDR_API_KEYS", "a, b,,")
    monkeypatch.setenv("ELDR_WORKER_KEY", "w")
    assert client_keys(SecurityConfig()) == ("a", "b")
    assert client_keys(SecurityConfig(api_keys=keys)) == ("first-secret", "second-secret")
    assert worker_authorization(SecurityConfig()) == "Bearer w"
    monkeypatch.delenv("ELDR_WORKER_KEY")
    assert worker_authorization(SecurityConfig()) is None
    monkeypatch.setenv("ELDR_API_KEYS", " ,")
    with pytest.raises(ConfigError, match="ELDR_API_KEYS is set but holds no key"):
        client_keys(SecurityConfig())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no key"),
        (b"\xff\xfe", "is no text"),
        ("schlüssel".encode(), "printable ASCII"),
    ],
)
def test_bad_key_files_are_named_but_not_quoted(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        client_keys(SecurityConfig(api_keys=str(file)))
    assert "ssel" not in str(error.value)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        client_keys(SecurityConfig(api_keys=str(tmp_path / "none")))
    file.write_text("a\nb\n")
    with pytest.raises(ConfigError, match="more than one key"):
        worker_authorization(SecurityConfig(worker_key=str(file)))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A self-signed certificate for 127.0.0.1, as PEM files."""
    folder = tmp_path_factory.mktemp("tls")
    files = {name: str(folder / f"{name}.pem") for name in ("cert", "key")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files["key"], "-out", files["cert"]]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("openssl, which makes the certificate, does not run here")
    return files


CA = """
[ca]
default_ca = it
[it]
database = index
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
"""


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [("2020", "2021", "certificate has expired"), ("2090", "2091", "certificate is not yet valid")],
)
def test_a_certificate_out_of_its_time_is_named(
    first: str, last: str, reason: str, certificate: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "ca.conf").write_text(CA)
    (tmp_path / "index").touch()
    ask = ["openssl", "req", "-new", "-key", certificate["key"], "-subj", "/CN=test", "-out", "request"]
    sign = ["openssl", "ca", "-batch", "-selfsign", "-config", "ca.conf", "-keyfile", certificate["key"]]
    dates = ["-startdate", f"{first}0101000000Z", "-enddate", f"{last}0101000000Z"]
    for command in (ask, [*sign, *dates, "-in", "request", "-out", "cert.pem", "-notext"]):
        subprocess.run(command, check=True, capture_output=True, timeout=30, cwd=tmp_path)
    cert = str(tmp_path / "cert.pem")
    with pytest.raises(ConfigError, match=f"tls_cert: '{cert}': {reason}; renew it"):
        server_tls(SecurityConfig(tls_cert=cert, tls_key=certificate["key"]))


def test_certificates_that_do_not_do_are_named(certificate: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("no PEM")
    bad = str(tmp_path / "bad")
    with pytest.raises(ConfigError, match="go together"):
        server_tls(SecurityConfig(tls_cert=certificate["cert"]))
    for cert, key in ((bad, certificate["key"]), (certificate["cert"], "/nowhere/key.pem")):
        with pytest.raises(ConfigError, match="no certificate and its key"):
            server_tls(SecurityConfig(tls_cert=cert, tls_key=key))
    with pytest.raises(ConfigError, match="worker_ca"):
        worker_tls(SecurityConfig(worker_ca=bad))
    assert server_tls(SecurityConfig()) is None


async def test_clients_and_workers_speak_tls(certificate: dict[str, str]) -> None:
    tls = {"tls_cert": certificate["cert"], "tls_key": certificate["key"]}
    trusted = ssl.create_default_context(cafile=certificate["cert"])
    async with stack(engine_tls=tls, security={**tls, "worker_ca": certificate["cert"]}) as s:
        assert s.url.startswith("https://")
        for stream in (False, True):
            async with s.http.post(
                s.url + COMPLETIONS, json={**PROMPT, "stream": stream}, ssl=trusted
            ) as answer:
                assert answer.status == 200
                await answer.read()
        assert len(s.prefill[0].received) == 2
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await s.http.get(s.url + "/health")


async def test_a_worker_whose_certificate_nobody_signed_is_not_trusted(certificate: dict[str, str]) -> None:
    tls = {"tls_cert": certificate["cert"], "tls_key": certificate["key"]}
    with pytest.raises(Exception, match="certificate verify failed"):
        async with stack(engine_tls=tls, wait_s=0.1):
            pass


def test_the_settings_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "eldr.yaml").write_text(
        "prefill: [https://a:1]\ndecode: [https://b:2]\nsecurity: {api_keys: keys, worker_ca: ca.pem}\n"
        "limits: {in_flight: 8, queue_timeout_s: 0.5}\n"
    )
    config = load_config(str(tmp_path / "eldr.yaml"), {})
    assert (config.security.api_keys, config.security.worker_ca) == ("keys", "ca.pem")
    assert (config.limits.in_flight, config.limits.queue_timeout_s, config.limits.queued) == (8, 0.5, 1024)
    with pytest.raises(ConfigError, match=r"unknown setting limits\.in_fligth"):
        load_config(str(tmp_path / "eldr.yaml"), {"limits": {"in_fligth": 8}})


async def test_a_handshake_that_does_not_come_ends(certificate: dict[str, str]) -> None:
    tls = {"tls_cert": certificate["cert"], "tls_key": certificate["key"]}
    async with stack(security=tls) as s:
        answer = await exchange(s.url, b"GET /health HTTP/1.1\r\n\r\n")
        assert status_of(answer) == 0
