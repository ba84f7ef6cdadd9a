"""The road through PgBouncer is what it claims to be."""

import psycopg

from tests.support.pgbouncer import PgBouncer


def test_clients_of_the_pooler_share_sessions(pooler: PgBouncer) -> None:
    with (
        psycopg.connect(pooler.dsn, autocommit=True) as one,
        psycopg.connect(pooler.dsn, autocommit=True) as other,
    ):
        backends = {
            client.execute("SELECT pg_backend_pid()").fetchone()
            for client in (one, other, one, other)
        }
    assert len(backends) == 1
