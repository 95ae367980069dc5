"""What may keep a stock harvester from using the pool: its versions, its configuration, its process, its sidecar."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpupool.cli.checks.finding import Finding, failed, passed, warned
from gpupool.harvester.chia_config import HarvesterConfig
from gpupool.harvester.chia_env import FITTING_CHIAPOS, TRIED, ChiaEnvironment, Kind
from gpupool.harvester.processes import HarvesterProcess
from gpupool.harvester.sidecar import SidecarView

FEW_LOOKUPS: Final = 8
"""Look-ups at once below which a pool is hardly used."""
MOST_LEVEL: Final = 7
_POOL_WAIT_SECONDS: Final = 20


def check_versions(chia: ChiaEnvironment) -> Iterator[Finding]:
    """Say whether these releases are ones that the library was tried with."""
    for name, found in (("chia-blockchain", chia.chia), ("chiapos", chia.chiapos)):
        if found is None:
            yield warned(
                name, "unknown", "A frozen program does not tell its release.", "Go by `chia version`."
            )
        elif found in TRIED[name]:
            yield passed(name, found)
        else:
            yield warned(
                name,
                found,
                f"This was tried with {' and '.join(TRIED[name])} only.",
                "Run `chia plots check` after the installation, and look at `gpupool harvester status`.",
            )


def check_fits(chia: ChiaEnvironment) -> Finding:
    """Say whether the library can take the place of this chiapos' decompressor at all."""
    name = "decompressor"
    if chia.bundled and (chia.chiapos is None or chia.chiapos.startswith(FITTING_CHIAPOS)):
        return passed(name, "a library of its own, as in chiapos 2.0")
    if chia.kind is Kind.FROZEN and not chia.bundled:
        return warned(
            name,
            "not found",
            "Where this frozen program keeps chiapos' decompressor is not known, and it was not tried.",
            "Look at `gpupool harvester status` after a restart; if the library is not loaded, use a virtual environment.",
        )
    return failed(
        name,
        f"chiapos {chia.chiapos or 'is missing'}",
        "Only chiapos 2.0 takes its decompressor from a library that another one can stand in for.",
        "Install chia-blockchain 2.1 or newer into that environment.",
    )


def check_config(config: HarvesterConfig) -> Iterator[Finding]:
    """Say what Chia's own configuration allows."""
    yield _lookups(config)
    level = config.max_compression_level_allowed
    if level < MOST_LEVEL:
        yield warned(
            "max_compression_level_allowed",
            str(level),
            f"Plots above C{level} are not farmed.",
            f"The pool does C1 to C7: set it to 7 in {config.path}.",
        )
    if config.enforce_gpu_index or config.use_gpu_harvesting:
        verdict = failed if config.enforce_gpu_index else warned
        yield verdict(
            "use_gpu_harvesting",
            f"{config.use_gpu_harvesting}, enforce_gpu_index {config.enforce_gpu_index}",
            "The harvester would look for a card of its own: the library has none to show, so an enforced one ends its"
            " start, and without it Chia writes an error and goes on.",
            f"Set both to False in {config.path}; the pool's cards are used all the same.",
        )
    if config.decompressor_timeout < _POOL_WAIT_SECONDS:
        yield warned(
            "decompressor_timeout",
            f"{config.decompressor_timeout} s",
            "A look-up that waits for its turn is given up sooner than Chia's default of 20 s.",
            f"Set it to 20 in {config.path}.",
        )


def _lookups(config: HarvesterConfig) -> Finding:
    name, count = "parallel_decompressor_count", config.parallel_decompressor_count
    advised = max(FEW_LOOKUPS, min(config.num_threads, 32))
    remedy = (
        f"Set harvester.{name} to {advised} in {config.path} and restart the harvester: look-ups of the pool cost this"
        " machine nothing."
    )
    if count <= 0:
        return failed(name, str(count), "With 0, Chia refuses every compressed plot.", remedy)
    if count < FEW_LOOKUPS:
        return warned(name, str(count), f"Only {count} look-ups are at the pool at once.", remedy)
    return passed(name, str(count))


def check_processes(found: list[HarvesterProcess], about: dict[str, Any], restart: str) -> Iterator[Finding]:
    """Say of each harvester whether the library is really in it."""
    if not any(process.ours for process in found):
        why = f"No harvester of the Chia in {about['chia']} was found on this machine."
        yield failed("harvester", "none runs", why, f"Start it: {restart}")
    for process in found:
        name = f"harvester {process.pid}"
        if not process.ours and process.library is None:
            yield warned(
                name,
                "of another Chia",
                f"Its files are not those of {about['chia']}, so it does not use the pool.",
                "Where that is the one to be used, run `gpupool harvester remove`, then install with its --chia.",
            )
        elif not process.readable:
            yield warned(name, "another user's", "What is loaded in it can't be seen.", "Run this as root.")
        elif process.library is None:
            yield failed(
                name,
                "without the library",
                "It was started before the installation, or in a way that does not reach it.",
                f"Restart it: {restart}",
            )
        elif process.library != about["library"]:
            yield warned(
                name,
                f"has {process.library}",
                "That is the library as it was before the last installation.",
                f"Restart it: {restart}",
            )
        else:
            yield passed(name, f"has the library ({process.library})")


def check_sidecar(view: SidecarView, socket: Path, start: str) -> Iterator[Finding]:
    """Say whether the sidecar answers, what stands behind it, and what harvesters have lost since it began."""
    if not view.answers:
        yield failed("sidecar", f"does not answer at {socket}", f"{view.why}.", f"Start it: {start}")
        return
    usable = [node for node in view.nodes if not (node["trouble"] or node["refused"])]
    measured = f"answers, version {view.version}, {len(usable)} of {len(view.nodes)} servers usable"
    if view.ready and usable:
        yield passed("sidecar", measured)
    else:
        yield failed("sidecar", measured, "No server behind it can be asked.", _node_words(view))
    for node in view.nodes:
        if node["trouble"] or node["refused"]:
            yield warned(
                f"server {node['name']}",
                "of no use",
                f"{node['refused'] or node['trouble']}.",
                "Look at that machine.",
            )
    lost = view.lost.get("quality", 0) + view.lost.get("proof", 0)
    answered = sum(node.get("answered") or 0 for node in view.nodes)
    bundled = view.lost.get("fallbacks", 0)
    counted = f"{answered} answered by servers, {bundled} by the bundled library, {lost} lost"
    if lost:
        yield warned(
            "look-ups",
            counted,
            "Since the sidecar began, that many got no answer at all; Chia itself does not notice a lost quality.",
            "See the last failures below, and `gpupool recompute alerts list`.",
        )
    else:
        yield passed("look-ups", counted)


def _node_words(view: SidecarView) -> str:
    if not view.nodes:
        return "Name servers: `gpupool harvester install --servers HOST`."
    return "Start the servers, or name others: `gpupool harvester install --servers HOST`."
