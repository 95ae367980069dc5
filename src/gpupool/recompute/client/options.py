"""What a client can be told; by default the ``CHIAPOS_RECOMPUTE_*`` variables say it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.client.hosts import Host
from gpupool.recompute.variables import ChiaposVariables


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Whom to ask and how long to wait."""

    hosts: tuple[Host, ...]
    """Servers or proxies; the load is shared over them."""
    timeout_s: float = 5.0
    """Seconds for one look-up in all, however many hosts it takes."""
    connect_timeout_s: float = 2.0
    """Seconds for connecting to one host, name resolution included."""
    retry_interval_s: float = 100.0
    """Seconds that a failed host is left alone while another one is good."""
    local_fallback: bool = False
    """Compute on this machine when no host is good; needs the ``recompute`` extra and a fast processor."""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InvalidInputError(
                "No recompute host is given.",
                remedy="Set CHIAPOS_RECOMPUTE_HOST=HOST[:PORT][,HOST[:PORT]...], or name hosts in the command.",
            )

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, local_fallback: bool = False, tls: bool = False
    ) -> Self:
        """Read the variables; raises InvalidInputError where one makes no sense or no host is set."""
        return cls.from_variables(
            ChiaposVariables.from_environment(environment), local_fallback=local_fallback, tls=tls
        )

    @classmethod
    def from_variables(
        cls,
        variables: ChiaposVariables,
        *,
        hosts: tuple[Host, ...] = (),
        timeout_s: float | None = None,
        local_fallback: bool = False,
        tls: bool = False,
    ) -> Self:
        """Take what ``variables`` say, except what is given; ``tls``: their hosts are asked over TLS."""
        return cls(
            hosts=hosts or tuple(Host(*address, tls) for address in variables.recompute_hosts),
            timeout_s=variables.recompute_timeout_s if timeout_s is None else timeout_s,
            connect_timeout_s=variables.recompute_connect_timeout_s,
            retry_interval_s=variables.recompute_retry_interval_s,
            local_fallback=local_fallback,
        )
