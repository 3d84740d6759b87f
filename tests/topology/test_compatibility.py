"""A manifest is read in the format that checkpoints have, and compared with a program's layout."""

import json
from typing import Any

import pytest

from thulawa.errors import StateError
from thulawa.streams import Materialized, StreamsBuilder, Topology
from thulawa.topology.compatibility import (
    ApplicationManifest,
    ProgramLayout,
    StoreState,
    SubTopologyLayout,
    check_compatibility,
    decode_manifest,
    encode_manifest,
)

# as version 0.1 writes it; fields that were added later are missing
WRITTEN: dict[str, Any] = {
    "format": 3,
    "application_id": "app",
    "generation": 2,
    "number": 1,
    "stages": 1,
    "groups": {"counts": [{"in": [0]}, {"in": [1]}]},
    "repartitions": {"by-page": 2},
    "stores": {
        "counts": {"kind": "key-value", "size": 0, "stage": 1, "tasks": 2, "prefix": "counts:0"}
    },
    "starts": {"in": {"0": 17}},
}


def layout(**changes: Any) -> ProgramLayout:
    store: dict[str, Any] = {"kind": "key-value", "size": 0, "stage": 1, "tasks": 2} | changes
    one = SubTopologyLayout(7, ["counts"], ["in"], [{"in": [0]}, {"in": [1]}])
    return ProgramLayout([one], {"counts": StoreState(**store)})


def test_a_manifest_of_the_present_format_is_read_and_written_back() -> None:
    manifest = decode_manifest(WRITTEN, "a file")
    assert manifest.starts == {"in": {0: 17}}
    assert manifest.internal_topics is None
    written = json.loads(json.dumps(encode_manifest(manifest)))
    assert written.items() >= (WRITTEN | {"stores": written["stores"]}).items()
    assert encode_manifest(decode_manifest(written, "a file")) == written


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**WRITTEN, "format": 2}, "a file was written by another version of Thulawa"),
        ({}, "a file was written by another version of Thulawa"),
        ({**WRITTEN, "stores": {"counts": 3}}, r"a file is damaged .*\n?.*from a backup"),
    ],
)
def test_what_is_no_manifest_of_this_format_is_refused(content: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        decode_manifest(content, "a file")


def test_state_is_found_by_the_names_of_stores() -> None:
    found = check_compatibility(decode_manifest(WRITTEN, "a file"), layout())
    assert found.losses == []
    assert found.prefixes == {7: "counts:0"}
    assert found.complete(layout(), 1) == ({7: "counts:0"}, 1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "window"}, "the store 'counts' was a key-value store and is now a window store"),
        ({"keys": "json"}, "keep the key_serde"),
        ({"stage": 2}, "moved to a different sub-topology or stage"),
        ({"tasks": 3}, "was spread over 2 tasks, now 3"),
        ({"changelog": True}, "had no changelog so far"),
    ],
)
def test_a_store_in_another_form_loses_its_state(changes: Any, why: str) -> None:
    found = check_compatibility(decode_manifest(WRITTEN, "a file"), layout(**changes))
    assert [loss.store for loss in found.losses] == ["counts"]
    assert why in found.losses[0].why
    assert found.prefixes == {}


def test_another_number_of_stages_loses_all_state() -> None:
    old = ApplicationManifest(stages=2)
    assert check_compatibility(old, layout()).is_all_lost
    assert not check_compatibility(ApplicationManifest(), layout()).is_all_lost


def test_a_changed_topology_is_judged_as_a_start_would() -> None:
    def counting(*, joined: bool) -> Topology:
        builder = StreamsBuilder()
        visits, orders = builder.stream("visits"), builder.stream("orders")
        both = visits.merge(orders) if joined else orders
        both.group_by_key().count(Materialized.as_("orders"))
        visits.group_by_key().count(Materialized.as_("visits"))
        return builder.build()

    change = counting(joined=True).state_change(counting(joined=False))
    assert (change.kept, change.lost) == (("visits",), ("orders",))
