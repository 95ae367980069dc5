"""The control API's messages about purging: ending deployments so that they are placed anew."""

from typing import Self

from pydantic import model_validator

from gpupool.contracts.base import Id, Input, Message, Name


class PurgeRequest(Input):
    """Says which deployments end: exactly one of the three."""

    everything: bool = False
    """Those of all chutes, except where a job runs."""
    node: Id | None = None
    """Those of chutes on this node, by name or id, jobs too."""
    deployment: Id | None = None
    """This one, whatever it is."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if sum((self.everything, self.node is not None, self.deployment is not None)) != 1:
            raise ValueError("give exactly one of everything, node and deployment")
        return self


class PurgedView(Message):
    """A deployment that is ending."""

    deployment_id: Id
    chute_id: Id
    chute: Name
    node_id: Id
    node: Name
    gpus: int
