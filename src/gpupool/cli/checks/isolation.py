"""The wall between workloads and everything else, as this machine can build it."""

from gpupool.cli.checks.finding import Finding, passed, warned
from gpupool.runtimes.process.confinement import Offer, Wall, look


def check_isolation() -> Finding:
    """Tell how workloads are confined when an agent of this user starts them."""
    return judge_isolation(look())


def judge_isolation(offer: Offer) -> Finding:
    """Return what an offer means: less than the kernel's allow-list warns."""
    name = "isolation of workloads"
    if offer.wall is Wall.FOLDERS:
        return warned(
            name,
            "folders and environment only",
            f"A chute can read what the agent can read: {offer.why}.",
            "Run the agent on a kernel with Landlock, or place only chutes that you trust on this machine.",
        )
    if offer.wall is Wall.ALLOW_LIST:
        return passed(name, f"an allow-list of paths; no user of its own, since {offer.why}")
    return passed(name, "a user of its own for each, and an allow-list of paths")
