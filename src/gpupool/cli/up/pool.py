"""The pool on this machine as one thing: started side by side, watched, stopped in good order."""

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

from gpupool.cli.up.children import Child
from gpupool.cli.up.leftovers import MARK, end_leftovers
from gpupool.cli.up.logs import LogKeeper
from gpupool.cli.up.plan import LOOPBACK, UpPlan
from gpupool.cli.up.warden import start_warden
from gpupool.core.home import Home
from gpupool.core.processes import identify_self
from gpupool.core.tokens import load_or_make_token

_READY_SECONDS: Final = 30.0
_AGENT_GRACE: Final = 20.0
_GRACE: Final = 8.0
_TICK: Final = 0.25
_STEP: Final = 0.02


class Pool:
    """Control, gateway and agent of one state folder, and the warden that guards them."""

    def __init__(self, plan: UpPlan) -> None:
        self.plan = plan
        home = plan.home
        env = {"GPUPOOL_HOME": str(home.root), MARK: str(home.root)}
        control = ["control", "serve", "--host", LOOPBACK, "--port", str(plan.control_port)]
        gateway = ["gateway", "serve", "--host", LOOPBACK, "--port", str(plan.gateway_port)]
        follow = ["--control", plan.control_url]
        self.control = Child(
            "control", control, env, home.logs / "control.log", (LOOPBACK, plan.control_port)
        )
        self.gateway = Child(
            "gateway", [*gateway, *follow], env, home.logs / "gateway.log", (LOOPBACK, plan.gateway_port)
        )
        self.agent = Child("agent", ["agent", "run", *follow], env, home.logs / "agent.log")
        self._warden: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the tokens and start control and agent side by side; the warden first, so that nothing is unguarded.

        The gateway comes with `start_gateway`: nobody asks it before control answers, and control is there sooner when
        the cores are its own.
        """
        make_tokens(self.plan.home)
        LogKeeper(self.plan.home.logs).tend()
        self._warden = start_warden(self.plan.home, identify_self())
        for child in (self.control, self.agent):
            child.start()

    def start_gateway(self) -> None:
        """Start the gateway, once control answers."""
        self.gateway.start()

    def wait_ready(self, child: Child) -> float:
        """Block until a child that listens answers as itself; return the seconds since its start."""
        return child.wait_ready(_READY_SECONDS)

    def watch(self, say: Callable[[str], None]) -> None:
        """Start dead children again for ever, telling each event through ``say``; ends by an exception only."""
        logs = LogKeeper(self.plan.home.logs)
        while True:
            fault = logs.tend()
            if fault is not None:
                say(fault)
            for child in (self.control, self.gateway, self.agent):
                news = child.tend(time.monotonic())
                if news is not None:
                    say(news)
            if self._warden is not None and self._warden.poll() is not None:
                self._warden = start_warden(self.plan.home, identify_self())
            time.sleep(_TICK)

    def stop(self) -> None:
        """End everything in good order: gateway and agent, then control, which hears the goodbye; force what stays."""
        for child in (self.gateway, self.agent):
            child.stop(signal.SIGTERM)
        self._wait_goodbye()
        self.control.stop(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for child in (self.gateway, self.agent, self.control):
            child.wait_gone(deadline - time.monotonic())
        self.kill()

    def _wait_goodbye(self) -> None:
        """Block until the agent has taken its record away: then nothing runs and control knows, though it still exits."""
        deadline, record = time.monotonic() + _AGENT_GRACE, self.plan.home.run / "agent.json"
        while record.exists() and time.monotonic() < deadline and not self.agent.wait_gone(_STEP):
            pass

    def kill(self) -> None:
        """End at once whatever still runs, then let the warden go."""
        for child in (self.agent, self.gateway, self.control):
            child.stop(signal.SIGKILL)
            child.wait_gone(_GRACE)
        end_leftovers(self.plan.home)
        if self._warden is not None:
            self._warden.terminate()
            self._warden.wait()
            self._warden = None


def make_tokens(home: Home) -> None:
    """Make the tokens at first start, so that everything can start at the same time."""
    for path in (home.operator_token, home.service_token, home.join_token):
        load_or_make_token(path)
