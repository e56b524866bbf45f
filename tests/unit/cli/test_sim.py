"""`commitlog sim`: the simulator is part of the tests; without them the command reports that."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import sim
from tests.simulation.__main__ import main as simulation


def test_without_the_tests_the_error_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sim, "ROOT", tmp_path)
    result = CliRunner().invoke(sim.sim_command, ["--seed", "7"])
    assert result.exit_code != 0
    assert "not installed" in result.output + str(result.exception)
    assert "checkout" in result.output + str(result.exception)


def test_the_command_passes_its_arguments_on(capfd: pytest.CaptureFixture[str]) -> None:
    result = CliRunner().invoke(sim.sim_command, ["--mode", "paxos"])
    assert result.exit_code == 2
    assert "'paxos' is not one of 'raft', 'controller', 'classic'" in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["raft", "controller", "classic"])
def test_each_mode_has_help_and_refuses_the_options_of_others(mode: str) -> None:
    help_ = CliRunner().invoke(simulation, ["--mode", mode, "--help"])
    assert help_.exit_code == 0
    assert f"commitlog sim --mode {mode}" in help_.output
    assert "--mode raft (the default), controller or classic" in " ".join(help_.output.split())
    refused = CliRunner().invoke(simulation, ["--seed", "7", "--mode", mode, "--colour"])
    assert refused.exit_code == 2
    assert "No such option '--colour'" in refused.output


@pytest.mark.parametrize(("option", "value"), [("--seeds", "-3"), ("--seeds", "0"), ("--seconds", "0")])
def test_a_run_of_nothing_is_refused(option: str, value: str) -> None:
    refused = CliRunner().invoke(simulation, [option, value])
    assert refused.exit_code == 2
    assert f"Invalid value for '{option}'" in refused.output


@pytest.mark.parametrize("options", [["--only", "1,2"], ["--seed", "7", "--full"]])
def test_options_without_an_effect_are_refused(options: list[str]) -> None:
    refused = CliRunner().invoke(simulation, options)
    assert refused.exit_code == 2
    assert "--only requires --seed, and --full excludes it" in refused.output
