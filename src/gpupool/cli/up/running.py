"""From the checks before the start to the last process gone, whatever happens in between."""

import json
import os
from typing import Final

import typer

from gpupool.cli.up.leftovers import end_leftovers
from gpupool.cli.up.plan import UpPlan
from gpupool.cli.up.pool import Pool
from gpupool.cli.up.preflight import check_packages, check_ports, take_lock
from gpupool.cli.up.progress import Progress
from gpupool.cli.up.stopping import StopRequested, StopSignals

STOPPED_EARLY: Final = 130


def run(plan: UpPlan, *, as_json: bool) -> int:
    """Do one ``up`` and return its exit code; raises GpupoolError when a check or a step fails, with nothing left behind."""
    progress = Progress(to_stderr=as_json)
    os.umask(0o077)
    plan.home.prepare()
    if plan.demo:
        check_packages()
    lock = take_lock(plan.home)
    with lock:
        ended = end_leftovers(plan.home)
        if ended:
            progress.say(f"ended {ended} processes that an earlier run left behind")
        check_ports(plan)
        progress.say(f"state folder {plan.home.root}")
        return _guarded(plan, progress, as_json=as_json)


def _guarded(plan: UpPlan, progress: Progress, *, as_json: bool) -> int:
    signals = StopSignals()
    pool = Pool(plan)
    signals.install()
    result, code = None, 0
    try:
        try:
            progress.say("starting control, gateway and agent")
            pool.start()
            # Loaded while the children start: the clients of the wire take as long to import as they do.
            from gpupool.cli.up.session import Session

            result = Session(plan, pool, progress).show()
            if as_json:
                typer.echo(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
            if not plan.once:
                from gpupool.cli.up.farewell import farewell

                for line in farewell(plan):
                    progress.plain(line)
                progress.say("up; stop with Ctrl-C")
                pool.watch(progress.say)
        except StopRequested:
            # Stopped before it showed what was asked for: a script must not take that for success.
            code = STOPPED_EARLY if result is None else 0
        finally:
            progress.say("stopping everything (Ctrl-C again: at once)")
            pool.stop()
    except StopRequested:
        signals.ignore()
        pool.kill()
        progress.say("stopped at once")
        return STOPPED_EARLY
    progress.say("stopped; everything is kept for the next start")
    return code
