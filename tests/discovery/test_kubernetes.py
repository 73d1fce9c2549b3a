"""Pods as workers, against an API server that speaks list and watch."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from discovery.fake_kubernetes import FakeKubernetes, fake_kubernetes, pod
from eldr.errors import ConfigError
from eldr.proxy.discovery.kubernetes import KubernetesSource, is_ready
from eldr.proxy.discovery.source import DiscoveryError, Wanted
from eldr.settings_fleet import KubernetesConfig

pytest.importorskip("kubernetes_asyncio", reason="the extra k8s is not installed")


class Followed:
    """A source whose sets are asked for one by one."""

    def __init__(self, kubeconfig: str) -> None:
        config = KubernetesConfig(decode="role=decode", namespace="ai", port=8100, kubeconfig=kubeconfig)
        self._sets = KubernetesSource("decode", "role=decode", config).sets()

    async def next(self) -> dict[str | None, str]:
        async with asyncio.timeout(10):
            wanted: tuple[Wanted, ...] = await anext(self._sets)
        assert all(one.role == "decode" for one in wanted)
        return {one.name: one.url for one in wanted}


@asynccontextmanager
async def following(folder: Path) -> AsyncIterator[tuple[FakeKubernetes, Followed]]:
    async with fake_kubernetes(folder) as (cluster, kubeconfig):
        followed = Followed(kubeconfig)
        try:
            yield cluster, followed
        finally:
            await followed._sets.aclose()


async def test_pods_come_become_ready_go_and_are_another_roles(tmp_path: Path) -> None:
    async with following(tmp_path) as (cluster, followed):
        await cluster.put(pod("a", "10.0.0.1"))
        await cluster.put(pod("starting", None, ready=False))
        await cluster.put(pod("other", "10.0.0.9", role="prefill"))
        assert await followed.next() == {"a": "http://10.0.0.1:8100"}
        await cluster.put(pod("b", "fd00::1"))
        assert await followed.next() == {"a": "http://10.0.0.1:8100", "b": "http://[fd00::1]:8100"}
        await cluster.put(pod("a", "10.0.0.1", ready=False))
        assert await followed.next() == {"b": "http://[fd00::1]:8100"}
        await cluster.put(pod("b", "fd00::1", deletionTimestamp="2026-01-01T00:00:00Z"))
        assert await followed.next() == {}
        await cluster.put(pod("a", "10.0.0.1"))
        assert await followed.next() == {"a": "http://10.0.0.1:8100"}
        await cluster.delete("a")
        assert await followed.next() == {}
        assert cluster.lists == 1


async def test_a_watch_that_is_too_old_is_a_new_list(tmp_path: Path) -> None:
    async with following(tmp_path) as (cluster, followed):
        await cluster.put(pod("a", "10.0.0.1"))
        await followed.next()
        waiting = asyncio.create_task(followed.next())
        while not cluster.watches:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        cluster.pods["b"] = pod("b", "10.0.0.2")  # no watch ever tells of it
        await cluster.forget_history()
        assert await waiting == {"a": "http://10.0.0.1:8100", "b": "http://10.0.0.2:8100"}
        assert cluster.lists == 2


async def test_a_watch_that_ends_goes_on_from_where_it_stood(tmp_path: Path) -> None:
    async with following(tmp_path) as (cluster, followed):
        await cluster.put(pod("a", "10.0.0.1"))
        await followed.next()
        cluster.events_a_watch = 1
        for index in range(2, 5):
            await cluster.put(pod(f"b{index}", f"10.0.0.{index}"))
            assert len(await followed.next()) == index
        assert (cluster.lists, cluster.watches) == (1, 3)


async def test_an_api_server_that_fails_or_is_not_there_is_an_error(tmp_path: Path) -> None:
    async with following(tmp_path) as (cluster, followed):
        cluster.broken = True
        with pytest.raises(DiscoveryError, match="Kubernetes answers 500"):
            await followed.next()
    (tmp_path / "gone").write_text((tmp_path / "kubeconfig").read_text())
    with pytest.raises(DiscoveryError, match="cannot be reached"):
        await Followed(str(tmp_path / "gone")).next()
    with pytest.raises(DiscoveryError, match="kubeconfig"):
        await Followed(str(tmp_path / "missing")).next()


@pytest.mark.parametrize("listing", [False, True])
async def test_an_api_server_that_is_cut_off_is_an_error_in_the_end(
    listing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eldr.proxy.discovery.kubernetes.WATCH_S", 0.1)
    monkeypatch.setattr("eldr.proxy.discovery.kubernetes.ANSWER_S", 0.1 if listing else 0.5)
    async with following(tmp_path) as (cluster, followed):
        if listing:
            cluster.silent = True
        else:
            assert await followed.next() == {}  # the watch does not end as it should
        with pytest.raises(DiscoveryError, match="Kubernetes cannot be reached"):
            await followed.next()


async def test_outside_of_a_cluster_the_error_says_what_to_set() -> None:
    source = KubernetesSource("decode", "role=decode", KubernetesConfig(decode="role=decode"))
    with pytest.raises(DiscoveryError, match=r"kubernetes\.kubeconfig"):
        await anext(source.sets())


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[k8s\]'"):
        KubernetesSource("decode", "role=decode", KubernetesConfig())


def test_a_pod_without_a_status_is_not_ready() -> None:
    assert not is_ready({"metadata": {"name": "new"}})
