"""The `thulawa` command as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import thulawa

# what decides which source is run, and how fast; the rest of the environment is left out
KEPT = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "JAVA_HOME")


def thulawa_command(
    *arguments: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("thulawa")
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return subprocess.run(
        [str(command), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=115,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "120", **kept, **environment},
    )


def test_help_lists_the_commands() -> None:
    shown = thulawa_command("--help")
    assert shown.returncode == 0
    assert "doctor" in shown.stdout
    assert "topics" in shown.stdout
    assert "Exit codes" in shown.stdout


def test_version_is_the_package_s() -> None:
    assert thulawa_command("--version").stdout.strip() == thulawa.__version__


def test_an_unknown_command_is_refused_with_exit_code_2() -> None:
    assert thulawa_command("dance").returncode == 2


def test_the_doctor_names_a_missing_java_and_what_to_install(tmp_path: Path) -> None:
    shown = thulawa_command("doctor", "--json", JAVA_HOME=str(tmp_path))
    assert shown.returncode == 1
    findings = {row["what"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert findings["Java"]["state"] == "missing"
    assert "openjdk" in findings["Java"]["advice"]
    assert findings["Python"]["state"] == "ok"


def test_the_doctor_says_that_a_broker_does_not_answer() -> None:
    shown = thulawa_command("doctor", "--json", THULAWA_KAFKA="127.0.0.1:1")
    findings = {row["what"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert findings["Kafka broker"]["state"] == "missing"
    assert shown.returncode == 1


def test_a_first_fetch_of_jars_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "java").touch(mode=0o755)  # Maven alone is missing
    here = str(tmp_path)
    environment = {"PATH": here, "JAVA_HOME": "", "THULAWA_CACHE": here}
    shown = thulawa_command("kafka", "up", "--port", "0", **environment)
    assert shown.returncode == 1
    assert shown.stderr.startswith("fetching")
    assert "mvn" in shown.stderr
