"""The commands of HTTP: serve the API and what people see, and make a token for it."""

from pathlib import Path

import click

from scheduler.cli.database import config_option, json_option
from scheduler.cli.options import Configuration
from scheduler.cli.roles import Process
from scheduler.cli.rules import web_tokens
from scheduler.cli.run import configured
from scheduler.cli.show import Failure, emit_json
from scheduler.log import logger
from scheduler.observe import logs
from scheduler.web.access import ALL, READ, SCOPES, hashed, minted

NO_EXTRA = "serving HTTP needs the extra `web`: pip install 'singleton-scheduler[web]'"


@click.command(short_help="Serve the HTTP API and the dashboard.")
@config_option
def web(path: Path) -> None:
    """Serve the HTTP API and the dashboard at web.host and web.port until SIGTERM or SIGINT.

    The process is an instance like any other, without functions of yours: it feeds queues and
    settles what comes back. Without web.tokens it serves this machine alone, which may then do
    everything.

    Example: scheduler web --config /etc/scheduler.yaml
    """
    with configured(path) as config:
        serve(config)


def serve(config: Configuration) -> None:
    """Start a scheduler and serve it, until a signal."""
    try:
        from scheduler.web.app import application  # noqa: PLC0415 - an extra
        from scheduler.web.serve import Server  # noqa: PLC0415
    except ImportError:
        raise Failure(NO_EXTRA) from None
    logs.configure(config.observability.log_level)
    process = Process(config)
    server = None
    try:
        app = application(
            process.schedule(None),
            tokens=web_tokens(config),
            rate_limit=config.web.rate_limit_per_sec,
        )
        server = Server(app, config.web.host, config.web.port)
        process.serve()
        server.start()
        logger.info(
            "web: at %s, %s",
            server.url,
            f"{len(config.web.tokens)} tokens" if config.web.tokens else "no tokens",
        )
        process.wait()
    finally:
        if server is not None:
            server.stop()
        process.stop()


@click.command("web-token", short_help="Make a token for the HTTP API.")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    default=(READ,),
    show_default=True,
)
@click.option(
    "--tenant", "tenants", multiple=True, metavar="T", help="Only this tenant; may be repeated."
)
@click.option(
    "--all-tenants", is_flag=True, help="All tenants, and what they share: queues and instances."
)
@json_option
def web_token(
    name: str,
    scopes: tuple[str, ...],
    tenants: tuple[str, ...],
    *,
    all_tenants: bool,
    as_json: bool,
) -> None:
    """Make a token called NAME; print it, this once, and what scheduler.yaml is to know of it: its
    hash.

    Example: scheduler web-token ci --scope read --scope write --tenant acme
    """
    if bool(tenants) == all_tenants:
        raise click.UsageError("name its tenants: --tenant T, or --all-tenants")
    token = minted()
    known = {
        "sha256": hashed(token),
        "scopes": list(dict.fromkeys(scopes)),
        "tenants": ALL if all_tenants else [*tenants],
    }
    if as_json:
        emit_json({"token": token, "web": {"tokens": {name: known}}})
        return
    click.echo(f"{token}\n\nIt is not shown again. In scheduler.yaml:\n", err=True)
    import yaml  # noqa: PLC0415 - the configuration's own language

    click.echo(
        yaml.safe_dump(
            {"web": {"tokens": {name: known}}}, sort_keys=False, allow_unicode=True
        ).rstrip()
    )


COMMANDS = (web, web_token)
