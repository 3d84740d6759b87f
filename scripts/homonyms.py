"""Print the class names and module names that the package defines more than once.

A class or module name means one thing in the whole package, so the list is
empty; the exit status is 1 when it is not.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "thulawa"


def modules(package: Path) -> dict[str, list[str]]:
    """Return every module name that stands in several folders, with its files."""
    places = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        if path.stem not in {"__init__", "__main__"}:
            places[path.stem].append(_shown(path, package))
    return _repeated(places)


def classes(package: Path) -> dict[str, list[str]]:
    """Return every class name that is defined several times, with file and line."""
    places = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in _classes(ast.parse(path.read_text(), str(path))):
            places[node.name].append(f"{_shown(path, package)}:{node.lineno}")
    return _repeated(places)


def main(package: Path = PACKAGE) -> int:
    """Print both lists and return the exit status."""
    found = [("module", modules(package)), ("class", classes(package))]
    for kind, names in found:
        for name, places in sorted(names.items()):
            print(f"{kind} {name}: {', '.join(places)}")
    return int(any(names for _, names in found))


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Yield the classes defined at any depth of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _repeated(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: where for name, where in places.items() if len(where) > 1}


def _shown(path: Path, package: Path) -> str:
    return path.relative_to(package).as_posix()


if __name__ == "__main__":
    sys.exit(main())
