"""The ``thulawa`` command."""


def main() -> None:
    """Run the command."""
    from thulawa.cli.commands import app  # noqa: PLC0415 the terminal libraries load on use

    app()
