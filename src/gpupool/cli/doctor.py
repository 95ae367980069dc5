"""``gpupool doctor``: what is wrong with the pool on this machine, and what to do about it."""

from typing import TYPE_CHECKING

from gpupool.cli.output import JsonFlag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpupool.cli.checks.finding import Finding


def doctor(as_json: JsonFlag = False) -> None:
    """Check this machine and the pool on it; works with the pool up, down or broken, and changes nothing.

    Exit code 0 when nothing fails (warnings are fine), 5 when something does.

    Examples: `gpupool doctor` · `gpupool doctor --json | jq '.findings[] | select(.verdict != "pass")'`
    """
    import os
    from collections import Counter

    import typer

    from gpupool.cli.checks.all import run_checks
    from gpupool.cli.checks.finding import Verdict
    from gpupool.cli.invocation import shown_path
    from gpupool.cli.output import print_plain_json
    from gpupool.core.home import Home

    home = Home.from_environment()
    findings = run_checks(home, os.environ)
    counts = Counter(finding.verdict for finding in findings)
    if as_json:
        print_plain_json({"home": str(home.root), "findings": [finding.to_json() for finding in findings]})
    else:
        typer.secho(f"Health of the pool in {shown_path(home.root)}", bold=True)
        print_findings(findings)
        typer.echo(", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))
    if counts[Verdict.FAIL]:
        raise typer.Exit(5)


def print_findings(findings: "Iterable[Finding]", width: int | None = None) -> None:
    """Print what fails, then warnings, with why and what to do, then what is well on a line each."""
    from gpupool.cli.checks.finding import Verdict
    from gpupool.cli.invocation import as_typed
    from gpupool.cli.output import print_wrapped, sentence_width

    order = [Verdict.FAIL, Verdict.WARN, Verdict.GOOD]
    width = width or sentence_width()
    for finding in sorted(findings, key=lambda finding: order.index(finding.verdict)):
        print_wrapped(f"{finding.verdict.value}  {finding.name}: {finding.measured}", width)
        for told in (finding.why, finding.remedy and f"What to do: {finding.remedy}"):
            if told:
                print_wrapped(as_typed(told), width, indent=6)
