"""``gpupool recompute doctor|env``: why a harvester gets no answers, and how it is pointed at its servers."""

from pathlib import Path
from typing import Annotated, Final

import typer

from gpupool.cli.output import JsonFlag, print_plain_json
from gpupool.cli.recompute_client_options import DEFAULT_HOST, AccessOptions, Hosts, hosts_of
from gpupool.cli.shared_options import takes_groups
from gpupool.recompute.start_script import Shell

_FAILED: Final = 5
"""As `gpupool doctor`."""


@takes_groups
def doctor(
    *,
    hosts: Hosts = None,
    access: AccessOptions,
    as_json: JsonFlag = False,
) -> None:
    """Find out why a harvester gets no answers: variables, names, ports, what listens there, TLS, version, clock.

    Without hosts and variables it asks this machine's own server, and whether others can reach that one. Changes
    nothing. Exit code 0 when nothing fails (warnings are fine), 5 when something does.

    Examples:

      gpupool recompute doctor

      gpupool recompute doctor 192.168.1.10:11989 --json
    """
    import asyncio
    import os

    from gpupool.cli.checks.finding import Verdict
    from gpupool.cli.checks.recompute import check_hosts, check_reach, check_variables, own_address
    from gpupool.core.errors import GpupoolError
    from gpupool.recompute.variables import ChiaposVariables

    findings = list(check_variables(os.environ))
    try:
        variables = ChiaposVariables.from_environment()
    except GpupoolError:
        # That is among the findings already; hosts that were named can be asked all the same.
        variables = ChiaposVariables()
    chosen = hosts_of(hosts, variables, default=DEFAULT_HOST)
    credentials = access.credentials()
    findings += asyncio.run(check_hosts(chosen, variables, credentials))
    address = own_address()
    if not hosts and not variables.recompute_hosts and address is not None and findings[-1].verdict != "fail":
        findings.append(check_reach(chosen[0].port, address, variables.recompute_connect_timeout_s))
    if as_json:
        print_plain_json({"findings": [finding.to_json() for finding in findings]})
    else:
        for finding in findings:
            typer.echo(f"{finding.verdict.value:4}  {finding.name}: {finding.measured}")
            if finding.why is not None:
                typer.echo(f"      {finding.why} {finding.remedy}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(_FAILED)


def env(
    hosts: Hosts = None,
    shell: Annotated[
        Shell | None, typer.Option(help="Where the line is typed [cmd on Windows, else sh].")
    ] = None,
    write_start_script: Annotated[
        bool,
        typer.Option(
            "--write-start-script", help="Write start_harvester.cmd or start_harvester.sh into this folder."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a start script that is there.")] = False,
) -> None:
    """Print the line that points a harvester at its servers, or write the harvester's start script.

    Examples:

      gpupool recompute env 192.168.1.10:11989,192.168.1.11

      gpupool recompute env 192.168.1.5:11989 --shell cmd --write-start-script
    """
    import os
    import sys

    from gpupool.recompute.start_script import VARIABLE, checked_hosts, environment_line, start_script

    chosen = shell or (Shell.CMD if sys.platform == "win32" else Shell.SH)
    value = checked_hosts(hosts or [os.environ.get(VARIABLE, "")])
    if not write_start_script:
        typer.echo(environment_line(chosen, value))
        return
    name, content = start_script(chosen, value)
    _write_script(Path(name), content, force=force)
    typer.echo(f"Wrote {name}. Put it beside the harvester's program and start the harvester with it.")


def _write_script(path: Path, content: bytes, *, force: bool) -> None:
    from gpupool.core.errors import ConflictError, EnvironmentProblemError

    try:
        with path.open("wb" if force else "xb") as file:
            file.write(content)
        if path.suffix == ".sh":
            path.chmod(0o755)
    except FileExistsError as error:
        raise ConflictError(f"{path} is there already.", remedy="Add --force to replace it.") from error
    except OSError as error:
        raise EnvironmentProblemError(
            f"{path} cannot be written: {error.strerror}.", remedy="Run this in a folder that you may write."
        ) from error
