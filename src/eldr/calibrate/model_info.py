"""How many experts a served model has, where its configuration can be read from here."""

import json
from pathlib import Path
from typing import Any

from eldr.errors import CalibrationError

KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What models call E in their config.json."""


def num_experts_of(model: str) -> int:
    """E from the config.json of a local model folder. CalibrationError where it is not there or not MoE."""
    path = Path(model) / "config.json"
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"cannot read {path}, which says how many experts the model has; is {model} a model's folder? "
            "(`eldr calibrate` takes --experts instead)"
        ) from error
    parts: list[Any] = [config, config.get("text_config")] if isinstance(config, dict) else []
    for part in parts:
        for key in KEYS if isinstance(part, dict) else ():
            if isinstance(part.get(key), int) and part[key] > 1:
                return int(part[key])
    raise CalibrationError(f"{path} names no experts; {model} is not a mixture-of-experts model")
