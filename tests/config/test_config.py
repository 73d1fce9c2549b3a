"""Settings: one meaning from flags and file, and errors that name key and value."""

from pathlib import Path
from typing import Any

import pytest

from eldr.config import Config, PolicyConfig, WorkerConfig, load_config, parse_option
from eldr.errors import ConfigError

WORKERS = {"prefill": ["http://a:1"], "decode": ["http://b:2", "http://c:3/"]}


def load(**overrides: Any) -> Config:
    return load_config(None, {**WORKERS, **overrides})


def test_workers_are_named_by_role_and_order_unless_given_a_name() -> None:
    config = load(decode=["http://b:2", "gpu-7=https://c:3/"])
    assert config.prefill == (WorkerConfig("p0", "http://a:1"),)
    assert config.decode == (WorkerConfig("d0", "http://b:2"), WorkerConfig("gpu-7", "https://c:3"))


def test_file_and_flags_give_the_same_config(tmp_path: Path) -> None:
    file = tmp_path / "eldr.yaml"
    file.write_text(
        "prefill: [http://a:1]\ndecode: [http://b:2, http://c:3]\nport: 9\n"
        "policy: {name: locality_band, options: {tau: 0.2}}\n"
    )
    policy = {"name": "locality_band", "options": {"tau": 0.2}}
    assert load_config(str(file), {}) == load(port=9, policy=policy)
    assert load_config(str(file), {"port": 10}).port == 10
    assert load_config(str(file), {}).policy == PolicyConfig("locality_band", {"tau": 0.2})


def test_options_given_alone_are_for_the_policy_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "eldr.yaml"
    file.write_text("policy: {name: locality_band, options: {tau: 0.2}}\n")

    def policy(flags: dict[str, Any]) -> PolicyConfig:
        return load_config(str(file), {**WORKERS, "policy": flags}).policy

    assert policy({"options": {"tau": 0.3}}) == PolicyConfig("locality_band", {"tau": 0.3})
    assert policy({"name": "jsq", "options": {}}) == PolicyConfig("jsq", {})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"port": "x"}, r"port: 'x': expected `int`"),
        ({"port": 70000}, r"port: 70000: expected `int` <= 65535"),
        ({"prt": 1}, r"unknown setting prt = 1; did you mean port\?"),
        ({"policy": {"nam": "jsq"}}, r"unknown setting policy\.nam = 'jsq'"),
        ({"policy": {"name": 3}}, r"policy\.name: 3: expected `str`"),
        ({"wait_s": -1}, r"wait_s: -1: expected a number of seconds >= 0"),
        ({"wait_s": "10s"}, r"wait_s: '10s': expected a number of seconds, got `str`"),
        ({"wait_s": float("nan")}, r"wait_s: nan: expected a number of seconds"),
        ({"drain_s": float("inf")}, r"drain_s: inf: expected a number of seconds <= 86400"),
        ({"idle_timeout_s": 0}, r"idle_timeout_s: 0: expected a number of seconds > 0"),
        ({"idle_timeout_s": 300_000}, r"idle_timeout_s: 300000: expected a number of seconds <= 86400"),
        ({"body_limit_bytes": "64MiB"}, r"body_limit_bytes: '64MiB': expected a number of bytes, got `str`"),
        ({"seed": -1}, r"seed: -1: expected `int` >= 0"),
        ({"processes": 0}, r"processes: 0: expected `int` >= 1"),
        ({"label_header": "a b"}, r"label_header: 'a b': expected the name of a header"),
        ({"policy": "jsq"}, r"policy: 'jsq': expected a mapping with name, options, got `str`"),
        ({"limits": {"in_fligth": 3}}, r"unknown setting limits\.in_fligth = 3; did you mean in_flight\?"),
        ({"security": {"api_key": "x"}}, r"unknown setting security\.api_key = 'x'; did you mean api_keys\?"),
        ({"breaker": {"open_s": 60}}, r"breaker\.open_s: 60 is above breaker\.longest_open_s, 30"),
        ({"dns": {"decode": ["http://x"]}}, r"dns\.decode\[0\]: 'http://x': expected http://NAME:PORT"),
        (
            {"observe": {"otlp_endpoint": "localhost:1"}},
            r"'localhost:1': expected a URL like http://HOST:4318",
        ),
        ({"policy": {"[": 1}}, r"unknown setting policy"),
        ({"a\nb": 1}, r"unknown setting 'a\\nb' = 1"),
        ({"seed": "x" * 500}, r"seed: 'x{79}\.\.\.: expected `int`, got `str`"),
        ({"decode": []}, r"no decode worker given"),
        ({"prefill": None}, r"no prefill worker given"),
        ({"decode": "http://b:2"}, r"decode: 'http://b:2' is not a list"),
        ({"decode": [{"url": "http://b:2"}]}, r"is not a list of URLs"),
        ({"decode": ["http://b:2", "http://b:2/"]}, r"'http://b:2' is given twice"),
        ({"decode": ["p0=http://b:2"]}, r"two workers are named 'p0'"),
        ({"decode": ["a b=http://b:2"]}, r"decode\[0\]\.name: 'a b'"),
        ({"decode": ["b:2"]}, r"worker 'd0': 'b:2' is not of the form http://HOST:PORT"),
        ({"decode": ["http://b:99999"]}, r"'http://b:99999' is not of the form"),
        ({"decode": ["http://u:p@b:2"]}, r"is not of the form"),
        ({"decode": ["http://b:2/v1"]}, r"'http://b:2/v1' is not of the form"),
        ({"decode": ["ftp://b:2"]}, r"'ftp://b:2' is not of the form"),
        ({"decode": ["http://"]}, r"is not of the form"),
        ({"decode": ["http://10.0.0..3:80"]}, r"'http://10.0.0..3:80' is not of the form"),
        ({"decode": [f"http://{'b' * 64}:80"]}, r"is not of the form"),
        ({"decode": ["http://a b:80"]}, r"'http://a b:80' is not of the form"),
        ({"decode": ["http://a\nb:80"]}, r"is not of the form"),
        ({"decode": ["d\n=http://b:2"]}, r"'d\\n': expected 1 to 64 letters"),
        ({"label_header": "x-label\n"}, r"'x-label\\n': expected the name of a header"),
    ],
)
def test_bad_settings_name_key_and_value(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1 is not YAML"),
        ("[1]", "must hold a mapping of settings, not list"),
        ("", "must hold"),
        ("port: 1\nport: 2\n", "line 2 is not YAML: 'port' is given twice"),
        ("policy: {name: jsq,\n name: p2c}\n", "line 2 is not YAML: 'name' is given twice"),
        ("port: !!python/object:x.y {}", "line 1 is not YAML: could not determine a constructor"),
        ("port: \x00", "is not YAML"),
        ("? [port]\n: 1\n", "line 1 is not YAML: found unhashable key"),
    ],
)
def test_bad_files_are_config_errors_of_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "eldr.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        load_config(str(file), WORKERS)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/eldr\.yaml: No such file or directory$"):
        load_config("/nowhere/eldr.yaml", WORKERS)


def test_a_misspelt_role_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting prefil = .*; did you mean prefill"):
        load(prefil=["http://a:1"], decode=["http://b:1"], prefill=[])


def test_the_same_engine_may_have_both_roles() -> None:
    config = load(prefill=["http://a:1"], decode=["http://a:1"])
    assert config.prefill[0].url == config.decode[0].url


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("tau=0.1", ("tau", 0.1)),
        ("workers={code: [d0]}", ("workers", {"code": ["d0"]})),
        ("name=x=y", ("name", "x=y")),
        ("flag=true", ("flag", True)),
    ],
)
def test_policy_options_are_yaml_values(text: str, parsed: tuple[str, Any]) -> None:
    assert parse_option(text) == parsed


@pytest.mark.parametrize("text", ["tau", "=1", "tau=", "tau=["])
def test_bad_policy_options_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="policy option"):
        parse_option(text)
