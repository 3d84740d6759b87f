"""Facts about the project's frame: what is published, what is documented, what is imported."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import thulawa

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "thulawa"

# What Spark's Python workers may load besides the standard library.
WORKER_LIBRARIES = {"cachetools", "msgspec", "pyarrow"}
# What a folder or a module may load beside these.
OWN_LIBRARIES = {
    "brokers/kafka/": {"confluent_kafka"},
    "core/avro.py": {"fastavro"},
    "core/registry.py": {"confluent_kafka"},
    "health/dataframes.py": {"pyspark"},
    "health/prometheus.py": {"prometheus_client"},
    "priority/bucket_columns.py": {"pyspark"},
    "priority/kafka_clients.py": {"confluent_kafka"},
    "state/rocksdb.py": {"rocksdict"},
}
# Folders that only ever run on the driver or in users' tests.
DRIVER_LAYERS = {"cli", "dev", "spark", "testing"}
DRIVER_LIBRARIES = {
    "click",
    "pandas",
    "prometheus_client",
    "pydantic",
    "pyspark",
    "rich",
    "starlette",
    "typer",
}

# The bracketed dots keep this pattern from matching its own source.
REGISTRY = re.compile(
    r"""pypi[.]org | pythonhosted[.]org | anaconda[.]org
    | repo1?[.]maven | npmjs[.]org
    | https?://\S+/simple\b
    | (?<!\S)--(extra-)?index-url | (?<!\S)--find-links""",
    re.VERBOSE,
)


def source_modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))


def imported_libraries(tree: ast.Module) -> set[str]:
    """Name the third-party libraries imported anywhere in a module, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"thulawa"}


def own_libraries(path: Path) -> set[str]:
    allowed = (which for place, which in OWN_LIBRARIES.items() if str(path).startswith(place))
    return set[str]().union(*allowed)


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def libraries_loaded_by(module: str) -> set[str]:
    """Import a module in a fresh interpreter and name the third-party libraries it brings in."""
    program = f"""
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    loaded = json.loads(output_of(sys.executable, "-c", program))
    roots = {name.partition(".")[0] for name in loaded}
    return roots - sys.stdlib_module_names - {"thulawa"}


def test_no_file_names_a_package_registry() -> None:
    names = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard")
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in names.splitlines()
        if (ROOT / name).is_file()
    }
    assert "requirements.lock" in texts
    assert [name for name, text in texts.items() if REGISTRY.search(text)] == []


@pytest.mark.parametrize(
    "line",
    [
        "https://files.pythonhosted{}org/packages/ab/cd".format("."),
        "{}index-url https://example.test/python".format("--"),
        "registry = 'http://example.test{}simple'".format("/"),
    ],
)
def test_a_registry_would_be_found(line: str) -> None:
    assert REGISTRY.search(line)


def test_every_declared_dependency_is_locked() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = [
        *pyproject["project"]["dependencies"],
        *pyproject["project"]["optional-dependencies"]["speed"],
        *pyproject["dependency-groups"]["dev"],
    ]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))
    assert {re.split(r"[^\w.-]", requirement)[0] for requirement in declared} - locked == set()


NAMESPACES = [
    "thulawa",
    "thulawa.embedded",
    "thulawa.engine",
    "thulawa.errors",
    "thulawa.health",
    "thulawa.kafka",
    "thulawa.priority",
    "thulawa.streams",
    "thulawa.testing",
]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_public_names_are_sorted_and_importable(namespace: str) -> None:
    module = import_module(namespace)
    assert list(module.__all__) == sorted(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_public_name_means_one_thing() -> None:
    meanings: dict[str, set[int]] = {}
    for namespace in NAMESPACES:
        module = import_module(namespace)
        for name in module.__all__:
            meanings.setdefault(name, set()).add(id(getattr(module, name)))
    assert {name for name, objects in meanings.items() if len(objects) > 1} == set()


def test_the_root_holds_the_names_of_everyday_use_alone() -> None:
    assert len(thulawa.__all__) <= 18


def test_every_module_says_what_it_is() -> None:
    assert [str(path) for path, tree in source_modules() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize("module", ["thulawa", "thulawa.core", "thulawa.engine"])
def test_importing_what_workers_import_stays_light(module: str) -> None:
    loaded = libraries_loaded_by(module)
    assert loaded & DRIVER_LIBRARIES == set()
    assert loaded - WORKER_LIBRARIES <= {"typing_extensions"}, "which msgspec takes where it is"


def test_the_light_import_test_sees_a_heavy_import() -> None:
    assert "rich" in libraries_loaded_by("rich.console")


def test_modules_that_run_on_workers_import_worker_libraries_only() -> None:
    found = {
        str(path): libraries
        for path, tree in source_modules()
        if path.parts[0] not in DRIVER_LAYERS
        and (libraries := imported_libraries(tree) - WORKER_LIBRARIES - own_libraries(path))
    }
    assert found == {}
