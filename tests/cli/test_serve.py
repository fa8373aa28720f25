"""`diffprior rebuild` and `token`: the upkeep of a decision service from the command line."""

from pathlib import Path

from cli.helpers import run


def test_upkeep_makes_no_database_of_a_wrong_name(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.sqlite"
    for command in (("rebuild",), ("token", "revoke", "a1b2")):
        for name in (str(wrong), f"sqlite:///{wrong}"):
            printed = run(*command, "--database", name, code=2)
            assert f"`database`: expected a database, found none at {wrong}" in printed
    assert not wrong.exists()


def test_a_token_is_made_and_revoked(tmp_path: Path) -> None:
    database = tmp_path / "service.sqlite"
    token = run("token", "create", "--database", database)
    name = token.split("_")[1]
    assert run("token", "revoke", name, "--database", database) == f"revoked {name}"
    assert "0 tasks" in run("rebuild", "--database", database)
