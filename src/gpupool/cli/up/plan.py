"""What one ``up`` is about: the state folder, the ports, and what to show."""

from dataclasses import dataclass
from typing import Final

from gpupool.core.home import Home

LOOPBACK: Final = "127.0.0.1"
"""Where everything of this pool listens: nothing leaves the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """What to start and what to show."""

    home: Home
    control_port: int
    gateway_port: int
    recompute_port: int
    once: bool
    demo: bool
    level: int
    """Compression level of the demo's proof, 1-5."""

    @property
    def control_url(self) -> str:
        """Where control answers."""
        return f"http://{LOOPBACK}:{self.control_port}"

    @property
    def gateway_url(self) -> str:
        """Where the gateway answers."""
        return f"http://{LOOPBACK}:{self.gateway_port}"

    @property
    def recompute_url(self) -> str:
        """Where the recompute server answers."""
        return f"http://{LOOPBACK}:{self.recompute_port}"

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """Port by role, with the option that changes it."""
        ports = {
            "control": ("--control-port", self.control_port),
            "gateway": ("--gateway-port", self.gateway_port),
        }
        return {**ports, "recompute": ("--recompute-port", self.recompute_port)} if self.demo else ports
