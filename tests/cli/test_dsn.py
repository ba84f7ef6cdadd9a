import pytest

from scheduler.cli.dsn import place, without_secrets


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://ada:swordfish@db.example:6432/app?sslmode=require", "db.example:6432/app"),
        ("postgresql+psycopg://ada@db.example/app", "db.example/app"),
        ("postgresql:///app?host=/run/postgresql", "/run/postgresql/app"),
        ("postgresql://", "localhost/"),
        ("host=db.example port=6432 dbname=app password=swordfish", "db.example:6432/app"),
        ("dbname='app'", "localhost/app"),
        ("postgresql://ada:sword@fish@db.example/app", "db.example/app"),
        ("postgresql://ada:swordfish@[::1/app", "the given database"),
        ("postgresql://ada@db.example:port/app", "the given database"),
    ],
)
def test_a_dsn_is_shown_as_where_it_leads(dsn: str, shown: str) -> None:
    assert place(dsn) == shown


@pytest.mark.parametrize(
    ("dsn", "text"),
    [
        ("postgresql://ada:s%2Fcret@h/d", "s%2Fcret or s/cret"),
        ("host=h password='it''s'", "it"),
        ("host=h PASSWORD = hunter2", "hunter2"),
        ("postgresql://h/d?password=hunter2&sslpassword=hunter3", "hunter2 hunter3"),
        ("postgresql://ada:p@ss:w/rd@h/d", "p ss w rd p@ss:w/rd"),
    ],
)
def test_passwords_are_hidden_wherever_they_are_quoted(dsn: str, text: str) -> None:
    assert set(without_secrets(text, dsn).replace("or", "").split()) == {"***"}


def test_a_dsn_without_a_password_hides_nothing() -> None:
    assert without_secrets("ada@h:5432/d", "postgresql://ada@h:5432/d") == "ada@h:5432/d"
    assert without_secrets("text", None) == "text"
