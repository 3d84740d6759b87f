"""Global tables of tasks that are new: read anew, for what was read is in the copies of others.

Each task has a copy of the tables it looks into, filled as their topics are read. A task that a new
partition or an edit of the program adds comes too late for that. So a checkpoint remembers which
copies there are, and where one is new the query goes back to the beginning of its topic: who has a
copy already takes the same rows once more, and ends where it was.
"""

import json
from pathlib import Path

from thulawa.spark.streams.logs import Topics
from thulawa.spark.streams.program import Program
from thulawa.spark.streams.records import Checkpoint

__all__ = ["fill_new_copies"]


def fill_new_copies(program: Program, topics: Topics, checkpoint: Checkpoint) -> None:
    """Have the next batch read the tables whole of which a task has no copy yet.

    To be asked at each start, before the query runs.
    """
    file, query = checkpoint.root / "tables.json", Path(checkpoint.query_path).name
    copies = _copies(program)
    known = _known(file, query)
    offsets = checkpoint.committed_offsets()
    late = {topic for topic, copy in copies if copy not in known and topic in offsets}
    if late:  # first: cut off after this, it is done once more
        starts = topics.start_offsets(tuple(sorted(late)))
        checkpoint.go_on_from(offsets | starts, None)
    content = {"query": query, "copies": sorted(copy for _, copy in copies)}
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _copies(program: Program) -> list[tuple[str, str]]:
    """Name the copies that there are to be, each with the topic it is filled from."""
    plan = program.plan
    return [
        (table.topic, f"{program.prefixes[part.group.id]}/{number}/{table.stores[0]}")
        for part in plan.parts.values()
        for table in plan.global_tables(part.group)
        for number in range(len(part.tasks))
    ]


def _known(file: Path, query: str) -> set[str]:
    """Give the copies that a query had at its last start; none, if that is not known."""
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return set()
    return set(written["copies"]) if written["query"] == query else set()
