import pytest

from eldr.errors import ConfigError
from eldr.registry import Registry


def test_names_in_order_of_registration() -> None:
    shapes: Registry[type] = Registry("shape")
    shapes.register("square")(int)
    shapes.register("circle")(str)
    assert shapes.names() == ("square", "circle")
    assert shapes["circle"] is str


def test_duplicates_and_unknown_names_raise() -> None:
    shapes: Registry[type] = Registry("shape")
    shapes.register("square")(int)
    with pytest.raises(ConfigError, match="shape 'square' is registered twice"):
        shapes.register("square")(str)
    with pytest.raises(ConfigError, match="unknown shape 'oval'; choose from square"):
        shapes["oval"]
