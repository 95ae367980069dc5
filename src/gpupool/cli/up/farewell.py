"""What ``up`` says once everything works: where things answer, and what to type next."""

import json

from gpupool.cli.invocation import own_command
from gpupool.cli.up.plan import UpPlan
from gpupool.cli.up.specs import demo_spec


def farewell(plan: UpPlan) -> list[str]:
    """Return the lines with the addresses and three commands to go on with."""
    gpupool, demo = own_command(), demo_spec()
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
