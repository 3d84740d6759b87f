"""scripts/homonyms.py lists class and module names that are defined more than once."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "homonyms.py"


def run(package: Path) -> tuple[int, list[str]]:
    code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); from pathlib import Path; "
    code += f"import homonyms; sys.exit(homonyms.main(Path({str(package)!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def package(root: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    return root


def test_names_that_are_defined_twice_are_listed_with_their_places(tmp_path: Path) -> None:
    tree = package(
        tmp_path, a__keys="class Batch: ...", b__keys="", b__rows="def f():\n    class Batch: ..."
    )
    assert run(tree) == (
        1,
        ["module keys: a/keys.py, b/keys.py", "class Batch: a/keys.py:1, b/rows.py:2"],
    )


def test_unique_names_are_not_listed(tmp_path: Path) -> None:
    tree = package(tmp_path, a__keys="class Batch: ...", b__rows="class Row: ...")
    assert run(tree) == (0, [])


def test_the_package_defines_every_name_once() -> None:
    assert run(SCRIPT.parents[1] / "src" / "thulawa") == (0, [])
