"""The file and DNS as sources of workers."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from eldr.config import load_config
from eldr.errors import ConfigError
from eldr.proxy.discovery.dns import DnsSource, addresses
from eldr.proxy.discovery.file import FileSource, Reload, workers_of
from eldr.proxy.discovery.source import DiscoveryError, Wanted

FILE = "prefill: [http://p:1]\ndecode: [{decode}]\n"


class Edited:
    """A configuration file that changes, and the source that follows it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **flags: list[str]) -> None:
        monkeypatch.setattr("eldr.proxy.discovery.file.INTERVAL_S", 0.01)
        self.path = path
        self.write("http://d:1")
        load = partial(load_config, str(path), flags)
        self.source = FileSource(Reload(str(path), load), load())
        self.sets: AsyncIterator[tuple[Wanted, ...]] = self.source.sets()

    def write(self, decode: str, more: str = "") -> None:
        self.path.write_text(FILE.format(decode=decode) + more)

    async def next(self) -> list[tuple[str, str | None, str]]:
        wanted = await asyncio.wait_for(anext(self.sets), 5)
        return [(one.role, one.name, one.url) for one in wanted]


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edited:
    return Edited(tmp_path / "eldr.yaml", monkeypatch)


async def test_a_file_is_read_again_when_it_changes(edited: Edited) -> None:
    edited.write("http://d:1, two=http://d:2")
    p0, d0 = ("prefill", "p0", "http://p:1"), ("decode", "d0", "http://d:1")
    assert await edited.next() == [p0, d0, ("decode", "two", "http://d:2")]


async def test_an_unchanged_file_is_not_read(edited: Edited) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(edited.sets), 0.1)


async def test_whoever_asks_has_it_read_at_once(edited: Edited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eldr.proxy.discovery.file.INTERVAL_S", 3600)
    edited.source.asked.set()
    assert len(await edited.next()) == 2


@pytest.mark.parametrize("bad", ["not a url", "[", "http://d:1, http://d:1", ""])
async def test_a_bad_file_is_an_error_once_and_a_good_one_works_again(edited: Edited, bad: str) -> None:
    edited.write(bad)
    with pytest.raises(ConfigError):
        await edited.next()
    edited.sets = edited.source.sets()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(edited.sets), 0.1)
    edited.sets = edited.source.sets()
    edited.write("http://d:7")
    assert ("decode", "d0", "http://d:7") in await edited.next()


async def test_a_file_that_is_gone_is_an_error(edited: Edited) -> None:
    edited.path.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        await edited.next()


async def test_other_settings_take_a_restart_and_say_so(
    edited: Edited, caplog: pytest.LogCaptureFixture
) -> None:
    edited.write("http://d:1", "port: 9999\nbreaker: {failures: 9}\n")
    await edited.next()
    assert "port, breaker changed, which takes a restart" in caplog.text


async def test_workers_from_flags_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = Edited(tmp_path / "eldr.yaml", monkeypatch, decode=["http://flag:1"])
    edited.write("http://d:5")
    assert ("decode", "d0", "http://flag:1") in await edited.next()


def test_the_workers_of_a_configuration() -> None:
    config = load_config(None, {"prefill": ["http://p:1"], "decode": ["x=http://d:1"]})
    assert workers_of(config) == (Wanted("prefill", "http://p:1", "p0"), Wanted("decode", "http://d:1", "x"))


async def test_a_name_is_one_worker_for_each_address_resolved_again_and_again() -> None:
    answers = [["10.0.0.1", "fd00::1"], ["10.0.0.1", "fd00::1"], ["10.0.0.2"]]

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("engines", 8100)
        return answers.pop(0)

    sets = DnsSource("decode", "http://engines:8100", 0.01, resolve).sets()
    first, second = await anext(sets), await anext(sets)
    assert [(one.name, one.url) for one in first] == [
        ("10.0.0.1-8100", "http://10.0.0.1:8100"),
        ("fd00--1-8100", "http://[fd00::1]:8100"),
    ]
    assert [one.url for one in second] == ["http://10.0.0.2:8100"]
    assert not answers


async def test_workers_behind_an_https_name_must_show_its_certificate() -> None:
    async def resolve(host: str, _: int) -> list[str]:
        assert host == "engines.svc"
        return ["10.0.0.1"]

    (worker,) = await anext(DnsSource("decode", "https://engines.svc:8443", 0.01, resolve).sets())
    assert (worker.url, worker.name, worker.tls_name) == (
        *("https://10.0.0.1:8443", "10.0.0.1-8443", "engines.svc"),
    )


async def test_real_names_are_resolved() -> None:
    assert "127.0.0.1" in await addresses("localhost", 80)
    with pytest.raises(DiscoveryError, match=r"name\.invalid cannot be resolved"):
        await addresses("name.invalid", 80)
