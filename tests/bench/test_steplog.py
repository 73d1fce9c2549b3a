import json

from eldr.bench.steplog import Step, StepLog


def line(t: float, kind: str, batch: int, active: float) -> bytes:
    return (
        json.dumps({"t": t, "kind": kind, "batch": batch, "active_mean": active, "active": [1]}).encode()
        + b"\n"
    )


def test_only_decode_steps_since_the_beginning_are_read(tmp_path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(line(90.0, "decode", 1, 4.0))
    log = StepLog("d0", path)
    with path.open("ab") as file:
        file.write(
            line(100.5, "decode", 3, 9.5) + line(100.6, "mixed", 4, 20.0) + line(101.0, "decode", 2, 7.0)
        )
        file.write(b'{"t": 101.2, "ki')  # the engine is writing
    assert log.steps(100.0) == [Step(0.5, "d0", 3, 9.5), Step(1.0, "d0", 2, 7.0)]


def test_a_log_may_begin_after_us(tmp_path) -> None:
    log = StepLog("d0", tmp_path / "steps.jsonl")
    log.path.write_bytes(line(1.0, "decode", 1, 4.0))
    assert log.steps(0.0) == [Step(1.0, "d0", 1, 4.0)]
