"""``gpupool token``: who else may ask control, and for what."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag

if TYPE_CHECKING:
    from gpupool.contracts.api_tokens import ApiTokenView

app = typer.Typer(help="Who else may ask control, and for what.", no_args_is_help=True)
_FOREVER = "never"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The person or program that it is for; events carry it.")],
    role: Annotated[
        str,
        typer.Option(
            help="viewer: read. operator: also change what runs and which nodes there are. admin: also tokens."
        ),
    ] = "viewer",
    expires: Annotated[str, typer.Option(metavar="TIME", help="Good for: 12h, 30d, 8w; or never.")] = "90d",
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make an API token and print it. It is shown this once; control keeps only a digest.

    Programs send it as `Authorization: Bearer TOKEN`; the commands take it from GPUPOOL_TOKEN. Exit code 5 when there is
    a usable token of that name.

    Examples: `gpupool token create grafana` · `gpupool token create alice --role operator --expires 30d`
    """
    from pydantic import ValidationError

    from gpupool.cli.output import print_json
    from gpupool.cli.spans import seconds_of
    from gpupool.contracts.api_tokens import ApiTokenRequest
    from gpupool.contracts.problems import describe
    from gpupool.core.errors import InvalidInputError

    days = None if expires == _FOREVER else seconds_of(expires) / 86_400
    try:
        request = ApiTokenRequest.model_validate({"name": name, "role": role, "valid_days": days})
    except ValidationError as error:
        raise InvalidInputError(describe(error)) from error
    with connect(control) as client:
        made = client.make_api_token(request)
    if as_json:
        print_json(made)
        return
    until = f"until {made.expires_at:%Y-%m-%d %H:%M} UTC" if made.expires_at else "until it is revoked"
    typer.echo(made.token)
    typer.echo(f"{made.name} is {made.role.value} {until}. The token is shown this once.", err=True)


@app.command("list")
def list_tokens(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """List the API tokens; the secret in them is shown nowhere again.

    Example: `gpupool token list --json`
    """
    from gpupool.cli.output import age, print_json, print_table

    with connect(control) as client:
        found = client.api_tokens()
    if as_json:
        print_json(found)
        return
    rows = [(t.name, t.role.value, _state(t), age(t.created_at), t.created_by, t.id) for t in found]
    print_table(
        "API tokens", ("NAME", "ROLE", "STATE", "AGE", "BY", "ID"), rows, "none but the operator's own."
    )


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The token's name or id.")], control: ControlOption = None
) -> None:
    """Let a token open nothing any more, from the next request on.

    Example: `gpupool token revoke alice`
    """
    with connect(control) as client:
        client.revoke_api_token(name)
    typer.echo(f"The token {name} opens nothing any more.")


def _state(token: "ApiTokenView") -> str:
    if token.why_not is not None:
        return token.why_not
    return f"until {token.expires_at:%Y-%m-%d}" if token.expires_at else "good"
