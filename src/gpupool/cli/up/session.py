"""One run of ``up`` shows that the pool works. Every step says what it does and what came of it."""

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from gpupool.cli.deploying import failed_ids, wait_active
from gpupool.cli.invocation import as_typed
from gpupool.cli.up.chat import ChatResult, ask
from gpupool.cli.up.plan import UpPlan
from gpupool.cli.up.pool import Pool
from gpupool.cli.up.progress import Progress
from gpupool.cli.up.proof import ProofResult, recompute
from gpupool.cli.up.specs import RECOMPUTE_NAME, demo_spec, recompute_spec
from gpupool.core.errors import DeadlineError
from gpupool.fleet.devices import DeviceKind

if TYPE_CHECKING:
    from gpupool.contracts.control import DeviceView
    from gpupool.contracts.control_client import ControlClient

_NODE_SECONDS: Final = 30.0
_ACTIVE_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpResult:
    """What one run has shown."""

    accelerators: list[str]
    chat: ChatResult | None
    proof: ProofResult | None
    control: str
    gateway: str
    recompute: str

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        return asdict(self)


class Session:
    """Brings the pool up and shows its two jobs done."""

    def __init__(self, plan: UpPlan, pool: Pool, progress: Progress) -> None:
        self.plan, self.pool, self.progress = plan, pool, progress
        self._known: frozenset[str] = frozenset()

    def show(self) -> UpResult:
        """Wait until everything has started, deploy what the demo needs, and show both results."""
        self.progress.say(
            f"control ready after {self.pool.wait_ready(self.pool.control):.1f} s at {self.plan.control_url}"
        )
        self.pool.start_gateway()
        with self._client() as client:
            if self.plan.demo:
                self.deploy(client)
            self.tell_kept(client)
            devices = self._wait_devices(client)
            accelerators = self._tell_devices(devices)
            self.pool.wait_ready(self.pool.gateway)
            self.progress.say(f"gateway ready at {self.plan.gateway_url}")
            chat = self._chat(client) if self.plan.demo else None
            proof = self._proof(client) if self.plan.demo else None
        return UpResult(
            accelerators=accelerators,
            chat=chat,
            proof=proof,
            control=self.plan.control_url,
            gateway=f"{self.plan.gateway_url}/v1",
            recompute=self.plan.recompute_url,
        )

    def deploy(self, client: "ControlClient") -> None:
        """Deploy what the demo needs, and say so where it was not there (any more)."""
        new = []
        for spec in (demo_spec(), recompute_spec(self.plan.recompute_port)):
            reply = client.deploy(spec)
            self._known |= failed_ids(reply.workload)
            new += [spec.name] if reply.created else []
        if new:
            self.progress.say(f"deployed for the demo: {', '.join(new)} (--no-demo deploys nothing)")

    def tell_kept(self, client: "ControlClient") -> None:
        """Name what runs although this start did not ask for it: whatever was wanted before is wanted still."""
        kept = [workload.name for workload in client.workloads() if workload.wanted]
        if self.plan.demo:
            kept = [name for name in kept if name not in {demo_spec().name, RECOMPUTE_NAME}]
        if kept:
            text = f"still wanted from before: {', '.join(kept)} (`gpupool chute delete NAME` takes one back)"
            self.progress.say(as_typed(text))

    def _client(self) -> "ControlClient":
        from gpupool.contracts.control_client import ControlClient

        return ControlClient(self.plan.control_url, self.plan.home.operator_token.read_text().strip())

    def _wait_devices(self, client: "ControlClient") -> "list[DeviceView]":
        deadline = time.monotonic() + _NODE_SECONDS
        while time.monotonic() < deadline:
            self.pool.agent.check_alive()
            nodes = [node for node in client.nodes() if node.connected]
            if nodes:
                self.progress.say(f"node {nodes[0].name} joined")
                return [device for device in client.devices() if device.present]
            time.sleep(0.05)
        raise DeadlineError(
            f"No agent has joined after {_NODE_SECONDS:g} s: {self.pool.agent.last_words()}",
            remedy=f"Its log is {self.pool.agent.log}.",
        )

    def _tell_devices(self, devices: "list[DeviceView]") -> list[str]:
        cards = [device for device in devices if device.kind is DeviceKind.GPU]
        for card in cards:
            mark = " (development: a CPU stands in)" if card.stand_in else ""
            faults = f"; {'; '.join(card.failed_rules)}" if card.failed_rules else ""
            self.progress.say(f"accelerator: {card.name}, {card.memory_mib} MiB{mark}{faults}")
        cpu = next(device for device in devices if device.kind is DeviceKind.CPU)
        if not cards:
            self.progress.say("accelerators: none found, which is fine")
        use = "the demo runs on the CPU" if self.plan.demo else "the CPU takes work too"
        self.progress.say(f"{use}: {cpu.name}, {cpu.memory_mib} MiB for the pool")
        return [card.name for card in cards]

    def _chat(self, client: "ControlClient") -> ChatResult:
        spec = demo_spec()
        with self.progress.waiting(f"starting {spec.name}"):
            wait_active(client, spec.name, _ACTIVE_SECONDS, self.progress.say, self._known)
        self._wait_routed(spec.models[0])
        self.progress.say(f"{spec.name} is active; asking {spec.models[0]} through the gateway, streaming:")
        self.progress.plain()
        show = self.progress.token
        chat = ask(self.plan.gateway_url, spec.models[0], show)
        self.progress.plain("\n")
        speed = chat.completion_tokens / max(chat.seconds - chat.first_token_seconds, 1e-6)
        self.progress.say(
            f"chat completion: {chat.completion_tokens} tokens, the first after {chat.first_token_seconds:.2f} s, "
            f"{speed:.0f} tokens/s, finish reason {chat.finish_reason}"
        )
        return chat

    def _wait_routed(self, model: str) -> None:
        import httpx

        deadline = time.monotonic() + _NODE_SECONDS
        with httpx.Client(trust_env=False) as http:
            while http.get(f"{self.plan.gateway_url}/readyz").status_code != httpx.codes.OK:
                if time.monotonic() > deadline:
                    raise DeadlineError(f"The gateway does not follow control, so {model} cannot be reached.")
                time.sleep(0.05)

    def _proof(self, client: "ControlClient") -> ProofResult:
        with self.progress.waiting("compiling the kernels (first start only, 10 to 30 s)"):
            wait_active(client, RECOMPUTE_NAME, _ACTIVE_SECONDS, self.progress.say, self._known)
        self.progress.say(
            f"recompute server ready; sending it a real k=32 mainnet proof truncated to C{self.plan.level}"
        )
        proof = recompute(self.plan.recompute_url, self.plan.level)
        self.progress.plain()
        self.progress.plain(f"  plot   {proof.plot_id}")
        self.progress.plain(f"  proof  {proof.proof}")
        self.progress.plain()
        self.progress.say(
            f"recompute: all 64 x-values recovered from C{proof.level} and verified in {proof.milliseconds:.0f} ms"
        )
        return proof
