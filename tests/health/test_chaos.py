"""Instances that are killed at random leave exact counts (long: `make chaos-topic-health`)."""

import pytest

from tests.health import chaos


@pytest.mark.timeout(600)
def test_counts_are_exact_when_instances_are_killed(capfd: pytest.CaptureFixture[str]) -> None:
    chaos.main(["--on", "process", "--messages", "100000", "--kills", "5"])
    assert "killed 5" in capfd.readouterr().out


def test_the_chaos_run_detects_a_wrong_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def miscounted(*arguments: object) -> dict[object, int]:
        return {}

    monkeypatch.setattr(chaos, "model", miscounted)
    with pytest.raises(SystemExit, match="for example"):
        chaos.main(["--on", "process", "--messages", "1000", "--kills", "0"])
