"""Renderings: Mermaid, Graphviz and JSON name every node, topic and store."""

import json

from thulawa.streams import Materialized, StreamsBuilder, Topology


def word_count() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("lines").flat_map_values(str.split, named="split")
    counts = words.group_by(lambda k, word: word).count(Materialized.as_("counts"), named="count")
    counts.to_stream(named="updates").to("word-counts")
    return builder.build()


def test_mermaid_draws_sub_topologies_topics_and_stores() -> None:
    lines = word_count().to_mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    assert sum(line.strip().startswith("subgraph") for line in lines) == 2
    text = "\n".join(lines)
    assert '(["lines"])' in text
    assert '[("counts")]' in text
    assert text.count("counts-repartition") >= 2


def test_the_two_halves_of_a_repartition_meet_at_one_topic() -> None:
    lines = word_count().to_mermaid().splitlines()
    into = [line for line in lines if line.endswith('(["counts-repartition"])')]
    out_of = [line for line in lines if '(["counts-repartition"]) -->' in line]
    assert len(into) == len(out_of) == 1
    topic = into[0].split("--> ")[1].split("(")[0]
    assert out_of[0].strip().startswith(topic)


def test_dot_is_one_digraph_with_a_cluster_per_sub_topology() -> None:
    text = word_count().to_dot()
    assert text.startswith("digraph topology {")
    assert text.count("subgraph cluster_") == 2
    assert '"topic: lines" -> "KSTREAM-SOURCE-0000000000";' in text
    assert '"count" -> "store: counts" [dir=none];' in text
    assert text.count("{") == text.count("}")


def test_json_has_every_node_with_its_parents_and_stores() -> None:
    content = json.loads(word_count().to_json())
    nodes = [node for group in content["sub_topologies"] for node in group["nodes"]]
    assert {node["name"] for node in nodes} == set(word_count().nodes)
    count = next(node for node in nodes if node["name"] == "count")
    assert count["stores"] == ["counts"]
    assert content["stores"] == [{"name": "counts", "kind": "key-value"}]
