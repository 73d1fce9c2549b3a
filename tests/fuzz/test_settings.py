"""Any settings and any call of the admin API: a value, or one line that says what is wrong."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eldr.config import Config, load_config, parse_option
from eldr.errors import ConfigError
from eldr.proxy.admin import create_admin_app
from fuzz.inputs import JSON
from fuzz.live import Router, beside
from support.raw import status_of
from support.stack import aiohttp_served, stack

KEY = "secret"
A_FEW = settings(max_examples=settings.default.max_examples // 4)
IN_ONE_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
GROUPS = ["policy", "breaker", "retry", "admin", "dns", "kubernetes", "observe", "limits", "security"]
KEYS = st.sampled_from(sorted({*Config.__struct_fields__, "prefil", "port "}))
INNER = st.sampled_from(["name", "options", "failures", "share", "port", "key_file", "prefill", "x"])
URL = st.sampled_from(["http://a:1", "x=http://a:1", "=", "http://", "http://[::1]:1", "http://[", "a"])
URLS = st.lists(URL)
VALUES = JSON | URLS | st.dictionaries(INNER, JSON | URLS, max_size=3)
SETTINGS = st.dictionaries(KEYS, VALUES, max_size=6)


def one_line(error: ConfigError) -> None:
    assert str(error)
    assert "\n" not in str(error)


@given(SETTINGS, st.dictionaries(st.sampled_from([*GROUPS, "port", "prefill", "decode"]), VALUES, max_size=2))
def test_any_settings_are_a_configuration_or_one_line(given_: dict[str, Any], flags: dict[str, Any]) -> None:
    workers = {"prefill": ["http://p:1"], "decode": ["http://d:1"]}
    try:
        assert isinstance(load_config(None, {**workers, **given_, **flags}), Config)
    except ConfigError as error:
        one_line(error)


YAML = [
    *(
        b"prefill: ",
        b"[",
        b"]",
        b"http://a:1",
        b"\n",
        b"- ",
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!python/",
        b"? ",
        b": ",
    ),
    *(b"port: ", b"0x", b"1e999", b"2026-01-01", b"{", b"}", b"'", b"#"),
]
FILES = (
    SETTINGS.map(lambda settings: yaml.safe_dump(settings).encode())
    | st.lists(st.sampled_from(YAML)).map(b"".join)
    | st.binary(max_size=60)
)


@IN_ONE_FILE
@given(FILES)
def test_any_file_is_a_configuration_or_one_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "eldr.yaml").write_bytes(text)
    try:
        assert isinstance(load_config(str(tmp_path / "eldr.yaml"), {}), Config)
    except ConfigError as error:
        one_line(error)


@given(st.text(max_size=20) | st.text("{}[]=:,-&*!?'\"a1 \n", max_size=12))
def test_any_option_is_a_key_and_a_value_or_one_line(text: str) -> None:
    with suppress(ConfigError):
        key, _ = parse_option(text)
        assert key


@pytest.fixture(scope="module")
def admin() -> Iterator[Router]:
    with beside(_administered()) as made:
        yield made


@asynccontextmanager
async def _administered() -> AsyncIterator[Router]:
    async with stack() as made, aiohttp_served(create_admin_app(made.app.membership, KEY)) as url:
        yield Router(int(url.rpartition(":")[2]), made.prefill[0])


NAMES = ["d9", "d0", "nobody", "a%20b", "%00", "..", "%2e%2e", "x" * 70]
TOLD = ["decode", "prefill", "d9", "http://127.0.0.1:1", "http://127.0.0.1:99999", "http://[", "", 1e999]
FIELDS = st.sampled_from(["role", "url", "name", "limit_s", "x"])
BODIES = st.dictionaries(FIELDS, st.sampled_from(TOLD) | JSON)


@A_FEW
@given(
    st.sampled_from(["GET", "POST", "DELETE", "PUT"]),
    st.sampled_from(["/workers", "/", "//workers", *(f"/workers/{name}" for name in NAMES)]),
    st.sampled_from(["", "/drain"]),
    BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=20),
    st.booleans(),
)
def test_any_call_of_the_admin_api(
    admin: Router, method: str, path: str, verb: str, body: bytes, knows: bool
) -> None:
    head = (
        f"{method} {path}{verb} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    )
    key = f"Authorization: Bearer {KEY if knows else 'no'}\r\n\r\n"
    answer = admin.send((head + key).encode() + body)
    assert status_of(answer) in ((200, 201, 202, 204, 400, 404, 405) if knows else (401, 404, 405)), answer
    assert KEY.encode() not in answer
