"""`eldr fit` and `eldr inspect` as a user runs them."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eldr.cli import cli, fit, inspect
from eldr.errors import CalibrationError, ConfigError, EldrError, PayloadError, ProfileError
from eldr.profile.artifact import Profile
from support.synthetic import calibration_set


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fit, inspect):
        monkeypatch.setattr(module.console, "width", 120)


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "cal.npz"
    calibration_set(requests=48, domains=3).save(path)
    return path


def test_fit_writes_a_profile_and_says_what_it_found(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "profiles" / "p.safetensors"
    result = run("fit", recorded, "--workers", 3, "--out", out, "--seed", 1, "--tau", 0.2)
    assert result.exit_code == 0, result.output
    profile = Profile.load(out)
    assert (profile.workers, profile.info.tau, profile.info.seed) == (3, 0.2, 1)
    for domain in range(3):
        assert f"domain{domain} 16" in result.output
    assert re.search(rf"{profile.info.transformation} +│ 0\.\d+ +│ chosen", result.output)
    kept = ", ".join(map(str, profile.kept_layers))
    said = f"Layers kept: {len(profile.kept_layers)} of 3 ({kept}), rho {profile.info.rho:.3f}"
    assert said in result.output
    assert re.search(r"│ 16 +│ \d+\.\d +│ \d+\.\d +│ -\d+\.\d%", result.output)
    assert re.search(r"│ 32 +│ \d+\.\d +│ - +│ - ", result.output)  # more than the 16 requests of a cluster
    assert "48 requests of synthetic; transformation and layers chosen in" in result.output
    assert "--gpu" in result.output


def test_fit_predicts_tpot_on_a_gpu(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    result = run("fit", recorded, "--workers", 3, "--out", out, "--layers", "0,2", "--gpu", "h200")
    assert result.exit_code == 0, result.output
    assert Profile.load(out).kept_layers.tolist() == [0, 2]
    assert "TPOT change" in result.output
    assert "share of active experts being that of synthetic" in result.output
    assert "Worth it: TPOT -" in result.output


def test_a_gpu_or_layer_that_is_not_there_is_named_and_nothing_written(
    recorded: Path, tmp_path: Path
) -> None:
    fit = ("fit", recorded, "--workers", 3, "--out", tmp_path / "p")
    before_any_work = run("fit", "absent", *fit[2:], "--gpu", "abacus")
    assert "--gpu 'abacus'; choose from a100, h100, h200" in str(before_any_work.exception)
    assert "kept layers are [7]" in str(run(*fit, "--layers", "7").exception)
    assert run(*fit, "--layers", "some").exit_code == 2
    assert not (tmp_path / "p").exists()


def test_too_few_requests_to_tell_the_gain(tmp_path: Path) -> None:
    calibration_set(requests=10).save(tmp_path / "cal.npz")
    out = tmp_path / "p.safetensors"
    result = run("fit", tmp_path / "cal.npz", "--workers", 5, "--out", out, "--gpu", "h200")
    assert "Too few requests with decode counts to tell" in result.output
    assert Profile.load(out).workers == 5


def test_inspect_describes_both_kinds_of_file(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    run("fit", recorded, "--workers", 2, "--out", out, "--transformation", "idf")
    profile = run("inspect", out).output
    for text in ("profile, format 1", "synthetic", "3 layers x 16 experts, top-2", "idf", "24, 24", " of 3"):
        assert text in profile
    calibration = run("inspect", recorded).output
    for text in ("calibration set", "synthetic", "domain0 16, domain1 16, domain2 16", "48"):
        assert text in calibration


def test_inspect_draws_a_profile(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, plots = tmp_path / "p.safetensors", tmp_path / "plots"
    run("fit", recorded, "--workers", 2, "--out", out)
    order = Profile.load(out).info.layer_order
    result = run("inspect", out, "--plot", plots, "--calibration", recorded)
    assert result.exit_code == 0, result.output
    assert re.search(rf"layers as selected +│ {order[0]} \(0\.\d+\), {order[1]} ", result.output)
    assert sorted(path.name for path in plots.iterdir()) == ["clusters.png", "layers.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())


def test_what_cannot_be_drawn_is_said(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "p.safetensors"
    run("fit", recorded, "--workers", 2, "--out", out, "--layers", "all")
    assert "given, not selected" in run("inspect", out).output
    assert "--calibration to draw its clusters" in str(
        run("inspect", out, "--plot", tmp_path / "x").exception
    )
    assert run("inspect", recorded, "--plot", tmp_path / "x").exit_code == 2
    calibration_set(layers=5).save(tmp_path / "other.npz")
    result = run("inspect", out, "--plot", tmp_path / "x", "--calibration", tmp_path / "other.npz")
    assert isinstance(result.exception, PayloadError)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (["inspect", "absent"], ConfigError, "cannot read .*absent: No such file"),
        (["inspect", "."], ConfigError, "cannot read"),
        (["inspect", "text"], ProfileError, "not a profile, or damaged"),
        (["inspect", "cut.npz"], CalibrationError, "cut off"),
        (["fit", "absent", "--workers", 2, "--out", "p"], CalibrationError, "no calibration set at"),
        (["fit", "text", "--workers", 2, "--out", "p"], CalibrationError, "not a calibration set"),
        (["fit", "cal.npz", "--workers", 49, "--out", "p"], CalibrationError, "cannot make 49 clusters"),
        (["fit", "cal.npz", "--workers", 2, "--out", "text/p"], ConfigError, "cannot write"),
    ],
)
def test_bad_input_is_one_expected_error(
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[object],
    error: type[EldrError],
    message: str,
) -> None:
    monkeypatch.chdir(recorded.parent)
    Path("text").write_text("hello")
    Path("cut.npz").write_bytes(recorded.read_bytes()[:500])
    result = run(*args)
    assert isinstance(result.exception, error)
    assert re.search(message, str(result.exception))
    assert "\n" not in str(result.exception)
    assert not Path("p").exists()


@pytest.mark.parametrize(
    "args", [["--workers", "0"], ["--tau", "3"], ["--transformation", "best"], ["--seed", "-1"], []]
)
def test_bad_options_are_usage_errors(recorded: Path, tmp_path: Path, args: list[str]) -> None:
    workers = [] if args in ([], ["--workers", "0"]) else ["--workers", "2"]
    assert run("fit", recorded, "--out", tmp_path / "p", *workers, *args).exit_code == 2


def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "[red]set.npz"
    calibration_set(requests=6).save(path)
    assert "[red]set.npz" in run("inspect", path).output
