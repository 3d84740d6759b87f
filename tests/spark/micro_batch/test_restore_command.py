"""``thulawa restore``: stores read back from their changelogs, said entry by entry."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from thulawa.brokers.embedded import Log, ProducerRecord
from thulawa.cli.commands import app

PROGRAM = """
from thulawa import Streams, StreamsBuilder
from thulawa.streams import Materialized

builder = StreamsBuilder()
by_word = builder.stream("words").group_by(lambda key, value: value)
by_word.count(Materialized(name="counts", changelog=True)).to_stream().to("counted")
streams = Streams(builder.build(), application_id="words", log="file:./topics")
"""


@pytest.mark.timeout(600)  # seconds on a machine that is not crowded: three queries are started
def test_a_lost_checkpoint_is_rebuilt_from_the_command_line(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "words.py").write_text(PROGRAM)
    with Log("file:./topics") as log:
        log.create_topic("words", partitions=1)
        words = ["a", "b", "a", "c", "a"]
        log.append({"words": [ProducerRecord(None, json.dumps(w).encode()) for w in words]})

    def command(*arguments: str) -> tuple[str, str]:
        monkeypatch.delitem(sys.modules, "words", raising=False)
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    from words import streams  # type: ignore[import-not-found] # noqa: PLC0415 made above

    with streams:
        streams.process_all_available()
    assert "nothing to restore" in command("restore", "words:streams")[1]
    shutil.rmtree(tmp_path / "topics" / "checkpoints")
    told, progress = command("restore", "words:streams", "--json")
    (store,) = map(json.loads, told.splitlines())
    assert (store["store"], store["task"], store["entries"]) == ("counts", 0, 3)
    assert "restored" in progress
    assert "nothing to restore" in command("restore", "words:streams")[1]
    del sys.modules["words"]
    from words import streams as again  # noqa: PLC0415 a second life

    with Log("file:./topics") as log:
        log.append({"words": [ProducerRecord(None, b'"a"')]})
    with again:
        again.process_all_available()
        assert again.store("counts").get("a") == 4
