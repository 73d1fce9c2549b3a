"""deploy/: what it says to Kubernetes, to the router and to Grafana is what these take."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from eldr.cli.serve import command
from eldr.config import Config, load_config
from eldr.metrics.prometheus import RouterMetrics

ROOT = Path(__file__).parents[2]
OBJECTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8")))
CONTAINERFILE = (ROOT / "deploy/Containerfile").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy/grafana.json").read_text(encoding="utf-8"))


def only(kind: str) -> Any:
    (found,) = [one for one in OBJECTS if one["kind"] == kind]
    return found


def pod() -> Any:
    return only("Deployment")["spec"]["template"]["spec"]


def container() -> Any:
    (found,) = pod()["containers"]
    return found


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "eldr.yaml").write_text(only("ConfigMap")["data"]["eldr.yaml"])
    return load_config(str(tmp_path / "eldr.yaml"), {})


def takes(args: list[str]) -> None:
    """Fails for arguments that `eldr` would refuse."""
    assert args[0] == "serve"
    command.make_context("serve", list(args[1:]))


def test_the_pods_port_and_probes_are_the_routers(config: Config) -> None:
    (port,) = container()["ports"]
    assert port["containerPort"] == config.port == int(re.findall(r"EXPOSE (\d+)", CONTAINERFILE)[0])
    assert config.host == "0.0.0.0"
    assert container()["livenessProbe"]["httpGet"] == {"path": "/health", "port": port["name"]}
    assert container()["readinessProbe"]["httpGet"] == {"path": "/ready", "port": port["name"]}
    annotations = only("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(config.port)
    (service,) = only("Service")["spec"]["ports"]
    assert service["targetPort"] == port["name"]


def test_the_pod_may_live_until_the_router_has_drained_and_has_time_to_find_workers(config: Config) -> None:
    assert pod()["terminationGracePeriodSeconds"] > config.drain_notice_s + config.drain_s
    readiness, startup = container()["readinessProbe"], container()["startupProbe"]
    assert (
        config.drain_notice_s > 3 * readiness["periodSeconds"]
    )  # three failures take a pod out of a service
    assert startup["periodSeconds"] * startup["failureThreshold"] > config.wait_s


def test_labels_and_names_fit_together(config: Config) -> None:
    labels = only("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert only("Service")["spec"]["selector"] == labels
    assert only("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert pod()["serviceAccountName"] == only("ServiceAccount")["metadata"]["name"]
    assert only("RoleBinding")["subjects"][0]["name"] == only("ServiceAccount")["metadata"]["name"]
    assert only("RoleBinding")["roleRef"]["name"] == only("Role")["metadata"]["name"]
    (rule,) = only("Role")["rules"]
    assert (rule["resources"], set(rule["verbs"])) == (["pods"], {"list", "watch"})
    assert config.kubernetes.prefill
    assert config.kubernetes.decode
    mounted = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod()["volumes"]}
    assert config.profile == f"{mounted['profile']}/profile.safetensors"
    assert container()["args"][-1] == f"{mounted['config']}/eldr.yaml"


def test_arguments_are_accepted() -> None:
    takes(container()["args"])
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", CONTAINERFILE, re.M)
    (default,) = re.findall(r"^CMD (.*)$", CONTAINERFILE, re.M)
    assert json.loads(entry) == ["eldr"]
    takes(json.loads(default))


def test_the_container_is_built_from_what_is_there() -> None:
    sources = [name for line in re.findall(r"^COPY (.*) \S+$", CONTAINERFILE, re.M) for name in line.split()]
    assert sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["readme"] in sources
    (extras,) = re.findall(r"pip install .*\[([\w,]+)\]", CONTAINERFILE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    user = re.findall(r"^USER (\d+)$", CONTAINERFILE, re.M)
    assert user == [str(pod()["securityContext"]["runAsUser"])]
    assert container()["image"].endswith(f"/eldr:{project['version']}")


def test_every_metric_of_the_dashboard_exists() -> None:
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    parts = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    families = [family for family in RouterMetrics().registry.collect() if family.type in parts]
    known = {family.name + part for family in families for part in parts[family.type]}
    of_engines = {"eldr_active_experts_sum", "eldr_active_experts_count"}
    used = {name for query in queries for name in re.findall(r"\beldr_\w+", query)}
    assert used <= known | of_engines
    shown = {family.name for family in families if any(name.startswith(family.name) for name in used)}
    assert {family.name for family in families} - shown <= {"eldr_worker_requests", "eldr_discovery_updates"}


def test_labels_of_the_dashboard_are_the_metrics() -> None:
    labels = {
        name
        for family in RouterMetrics().registry._names_to_collectors.values()
        for name in family._labelnames
    }
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = {
                one.strip()
                for text in re.findall(r"by \(([^)]*)\)", target["expr"])
                for one in text.split(",")
            }
            assert named <= grouped
            assert grouped - {"le", "instance"} <= labels


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in DASHBOARD["panels"]})
