"""A short chaos run of window counts; the long one is ``make chaos-topic-health``."""

import json

import pytest

from tests.health import chaos


@pytest.mark.timeout(600)
def test_counts_are_exact_when_instances_are_killed(capfd: pytest.CaptureFixture[str]) -> None:
    status = chaos.main(["--on", "process", "--messages", "100000", "--kills", "5", "--json"])
    row = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (status, row["clean"], row["killed"]) == (0, True, 5), row


def test_the_chaos_run_detects_a_wrong_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_model(*arguments: object) -> dict[object, int]:
        return {}

    monkeypatch.setattr(chaos, "model", wrong_model)
    assert chaos.main(["--on", "process", "--messages", "1000", "--kills", "0"]) == 1
