"""The one rule for names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thulawa.core.names import LONGEST_NAME, check_name
from thulawa.errors import ConfigurationError

LEGAL = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


@given(st.text(LEGAL, min_size=1, max_size=LONGEST_NAME).filter(lambda name: name.strip(".")))
def test_a_legal_name_is_returned(name: str) -> None:
    assert check_name(name, "topic") == name


@given(st.text(max_size=20), st.characters(exclude_characters=LEGAL), st.text(max_size=20))
def test_an_illegal_character_is_rejected_and_shown(before: str, odd: str, after: str) -> None:
    with pytest.raises(ConfigurationError, match=r"holds '|holds \""):
        check_name(before + odd + after, "topic")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "folder"),
        ("..", "folder"),
        ("../x", "holds '/'"),
        ("a\0", r"holds '\\x00'"),
        ("visits\n", r"holds '\\n'"),
        ("é", "holds 'é'"),
        ("\u0661", "holds"),  # a digit, but not one of ours
        ("x" * 250, "250 characters: use at most 249"),
    ],
)
def test_the_error_says_what_is_wrong(name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^store name .*{reason}"):
        check_name(name, "store")


def test_a_name_of_249_characters_and_one_of_three_dots_are_legal() -> None:
    assert check_name("x" * 249, "topic")
    assert check_name("...", "topic")


@pytest.mark.parametrize("name", [None, b"visits", 7])
def test_a_name_is_a_str(name: object) -> None:
    with pytest.raises(ConfigurationError, match="group name is a str, not"):
        check_name(name, "group")


def test_a_long_name_is_truncated_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        check_name("x" * 100_000, "topic")
    assert len(str(refusal.value)) < 200
