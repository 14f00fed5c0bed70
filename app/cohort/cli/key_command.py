"""`cohort key`: API keys for callers."""

from __future__ import annotations

import rich_click as click

from cohort.cli import options


@click.group()
def key() -> None:
    """Create API keys. COHORT_API_KEYS is the file with the keys that a server accepts."""


@key.command("new")
@click.argument("name")
@click.option(
    "--model", "models", multiple=True, metavar="MODEL", help="Allow only this model; repeatable."
)
@click.option("--rate", type=float, metavar="NUMBER", help="Maximum requests per second.")
@click.option("--tokens-per-minute", type=int, metavar="NUMBER", help="Tokens of language models.")
@click.option("--concurrency", type=int, metavar="NUMBER", help="Maximum concurrent requests.")
@click.option("--priority", type=int, metavar="NUMBER", help="1 is served first, -1 last.")
@click.option("--admin", is_flag=True, help="Allow operator actions.")
@click.pass_context
def new(
    context: click.RichContext,
    /,
    name: str,
    models: tuple[str, ...],
    rate: float | None,
    tokens_per_minute: int | None,
    concurrency: int | None,
    priority: int | None,
    admin: bool,
) -> None:
    """Create a key for NAME.

    The first line of the output is the key, which is not shown again. The next line is the entry
    for the keys file, with the key's SHA-256 only. Servers reread the file when it changes.

    \b
    cohort key new web >web.key && tail -n +2 web.key >>keys.yaml
    cohort key new batch --model iris --rate 100 --concurrency 10
    """
    from cohort.auth import digest_of, new_key, parse_keys
    from cohort.errors import ConfigInvalid

    secret = new_key()
    parts = [f"name: {_quoted(name)}", f'sha256: "{digest_of(secret).hex()}"']
    if models:
        parts.append(f"models: [{', '.join(map(_quoted, models))}]")
    if rate is not None:
        parts.append(f"rate: {rate:.15g}")
    if tokens_per_minute is not None:
        parts.append(f"tokens_per_minute: {tokens_per_minute}")
    if concurrency is not None:
        parts.append(f"concurrency: {concurrency}")
    if priority is not None:
        parts.append(f"priority: {priority}")
    if admin:
        parts.append("admin: true")
    entry = f"- {{{', '.join(parts)}}}"
    try:
        parse_keys(entry, "")
    except ConfigInvalid as error:
        for line in str(error).splitlines():
            click.echo(f"Error: {line.removeprefix('[0].')}", err=True)
        context.exit(options.MISUSED)
    click.echo(secret)
    click.echo(entry)


def _quoted(text: str) -> str:
    """Format text as YAML; quote values that YAML could read as another type."""
    import json

    return text if text.isalpha() and text not in _NOT_TEXT else json.dumps(text)


_NOT_TEXT = frozenset(
    {word for plain in ("null", "true", "false") for word in (plain, plain.title(), plain.upper())}
)
