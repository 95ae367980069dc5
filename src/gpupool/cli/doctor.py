"""``gpupool doctor``: what is wrong with the pool on this machine, and what to do about it."""

from gpupool.cli.output import JsonFlag


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
    from gpupool.cli.output import print_plain_json, print_table
    from gpupool.core.home import Home

    home = Home.from_environment()
    findings = run_checks(home, os.environ)
    counts = Counter(finding.verdict for finding in findings)
    if as_json:
        print_plain_json({"home": str(home.root), "findings": [finding.to_json() for finding in findings]})
    else:
        print_table(
            f"Health of the pool in {home.root}",
            ("VERDICT", "CHECK", "MEASURED", "WHY", "WHAT TO DO"),
            ((f.verdict.value, f.name, f.measured, f.why, f.remedy) for f in findings),
            "nothing was checked",
        )
        typer.echo(", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict))
    if counts[Verdict.FAIL]:
        raise typer.Exit(5)
