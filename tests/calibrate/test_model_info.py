import json

import pytest

from eldr.calibrate.model_info import num_experts_of
from eldr.embedded import model_path
from eldr.errors import CalibrationError


def test_the_embedded_model() -> None:
    assert num_experts_of(str(model_path())) == 64


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_local_experts": 32}, 32),
        ({"text_config": {"num_experts": 128}}, 128),
        ({"num_experts": None, "n_routed_experts": 160}, 160),
    ],
)
def test_every_form_of_config(tmp_path, config: object, experts: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert num_experts_of(str(tmp_path)) == experts


@pytest.mark.parametrize(
    "config", [{}, {"num_experts": 1}, {"text_config": None}, {"text_config": [1]}, [], None]
)
def test_a_model_without_experts_is_named(tmp_path, config: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CalibrationError, match="is not a mixture-of-experts model"):
        num_experts_of(str(tmp_path))


def test_a_folder_without_config_is_named(tmp_path) -> None:
    with pytest.raises(CalibrationError, match=r"cannot read .*config\.json"):
        num_experts_of(str(tmp_path))
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(CalibrationError, match=r"cannot read .*config\.json"):
        num_experts_of(str(tmp_path))
