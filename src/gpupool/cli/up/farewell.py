"""What ``up`` says once everything works: where things answer, and what to type next."""

import json
import sys
from pathlib import Path

from gpupool.cli.up.plan import UpPlan
from gpupool.cli.up.specs import demo_spec


def farewell(plan: UpPlan) -> list[str]:
    """Return the lines with the addresses and three commands to go on with."""
    gpupool, demo = _command(), demo_spec()
    question = {
        "model": demo.models[0],
        "stream": True,
        "messages": [{"role": "user", "content": "What is gravity?"}],
    }
    ask = (
        f"curl -N {plan.gateway_url}/v1/chat/completions"
        f" -H 'Content-Type: application/json' -d '{json.dumps(question)}'"
    )
    return [
        "",
        f"  API        {plan.control_url}   (bearer token in {plan.home.operator_token})",
        f"  gateway    {plan.gateway_url}/v1   (OpenAI-compatible)",
        *([f"  recompute  {plan.recompute_url}"] if plan.demo else []),
        "",
        "Go on with, in another terminal:",
        f"  {gpupool} status",
        f"  {gpupool} chute logs {demo.name} -n 20" if plan.demo else f"  {gpupool} chute list",
        f"  {ask}" if plan.demo else f"  {gpupool} gpu catalog",
        "",
    ]


def _command() -> str:
    """Return how this user types ``gpupool``: the launcher beside the running Python, else the bare name."""
    launcher = Path(sys.executable).parent / "gpupool"
    if not launcher.exists():
        return "gpupool"
    # Short where the user stands in the checkout, else good from anywhere.
    short = Path(".venv/bin/gpupool")
    return str(short) if short.absolute() == launcher else str(launcher)
