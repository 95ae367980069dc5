"""A stock farmer of chia-blockchain, with its own RPC and its own connections, that is handed partial proofs.

Runs in Chia's environment, not in ours. Arguments: folder, port for peers, port of the RPC, partial proofs wanted, k,
strength, and ``repaired`` or ``stock``. It makes a plot, starts Chia's farmer service, and then does what lines on its
input say: ``ask FROM TO`` hands so many partial proofs to the farmer as a harvester would. Lines of JSON tell what
becomes of them. What the farmer would do next with a whole proof, which real plots are needed for, is recorded instead
and checked by Chia's library.

Release 2.7.5 takes no answer of any solver: its handler for them wants to know the connection and does not say so, and
so fails with a TypeError that ends the connection. ``repaired`` says so in its place; nothing else is changed.
"""

import asyncio
import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from chia.cmds.init_funcs import create_default_chia_config
from chia.consensus.default_constants import DEFAULT_CONSTANTS
from chia.farmer.start_farmer import create_farmer_service
from chia.protocols.harvester_protocol import PartialProofsData
from chia.protocols.protocol_message_types import ProtocolMessageTypes
from chia.ssl.create_ssl import create_all_ssl
from chia.util.bech32m import encode_puzzle_hash
from chia.util.config import load_config, save_config
from chia.util.keychain import Keychain, generate_mnemonic, set_keys_root_path
from chia_rs import AugSchemeMPL
from chia_rs.sized_bytes import bytes32
from chia_rs.sized_ints import uint8, uint16

chia_rs: Any = import_module("chia_rs")  # another release than the one that types here are checked with
ADDRESS = encode_puzzle_hash(bytes32(bytes(32)), "xch")


class Harvester:
    """Stands in for the connection to a harvester."""

    peer_node_id = bytes32(bytes(32))


class Plot:
    """A small v2 plot and its partial proofs."""

    def __init__(self, folder: Path, k: int, strength: int, wanted: int) -> None:
        self.k, self.strength, self.key = k, strength, AugSchemeMPL.key_gen(bytes(32)).get_g1()
        self.plot_id = bytes32(chia_rs.compute_plot_id_v2(strength, self.key, self.key, None, 0, 0))
        path = str(folder / "plot-v2.plot")
        chia_rs.create_v2_plot(path, k, strength, self.plot_id, uint16(0), uint8(0), bytes(112), False)
        prover = chia_rs.Prover(path)
        self.partial_proofs: list[tuple[bytes32, Any]] = []
        number = 0
        while len(self.partial_proofs) < wanted:
            challenge = bytes32(hashlib.sha256(number.to_bytes(4, "big")).digest())
            self.partial_proofs += [
                (challenge, found) for found in prover.get_qualities_for_challenge(challenge)
            ]
            number += 1

    def message(self, number: int) -> Any:
        challenge, partial = self.partial_proofs[number]
        return PartialProofsData(
            challenge,
            challenge,
            "a plot of the tests",
            [partial],
            uint8(0),
            uint8(self.k),
            uint16(0),
            uint8(0),
            uint8(self.strength),
            self.plot_id,
            self.key,
            None,
            self.key,
        )

    def is_proof(self, challenge: bytes32, proof: bytes) -> bool:
        return (
            chia_rs.validate_proof_v2(self.plot_id, self.k, challenge, self.strength, proof, False)
            is not None
        )


def say(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def configured(root: Path, port: int, rpc_port: int) -> dict[str, Any]:
    if not (root / "config" / "config.yaml").exists():
        create_default_chia_config(root)
        create_all_ssl(root)
        config = load_config(root, "config.yaml")
        config["farmer"] |= {
            "port": port,
            "rpc_port": rpc_port,
            "full_node_peers": [],
            "xch_target_address": ADDRESS,
        }
        config["pool"]["xch_target_address"] = ADDRESS
        save_config(root, "config.yaml", config)
    loaded: dict[str, Any] = load_config(root, "config.yaml")
    return loaded


async def until_started(farmer: Any) -> None:
    while True:
        await asyncio.sleep(0.05)
        if farmer.started:
            return


async def main() -> None:
    root, port, rpc_port, wanted, k, strength = Path(sys.argv[1]), *map(int, sys.argv[2:7])
    config = configured(root / "chia", port, rpc_port)
    set_keys_root_path(root / "keys")
    keychain = Keychain()
    if not keychain.get_all_private_keys():
        keychain.add_key(generate_mnemonic())
    plot = Plot(root, k, strength, wanted)
    service = create_farmer_service(
        root / "chia", config, config["pool"], DEFAULT_CONSTANTS, keychain, connect_to_daemon=False
    )
    farmer, api = service._node, service._api
    if sys.argv[7] == "repaired":
        api.metadata.message_type_to_request[ProtocolMessageTypes.solution_response].peer_required = True

    async def record(found: Any, _: Any) -> None:
        space = found.proof
        say(proof=bytes(space.proof).hex(), valid=plot.is_proof(space.challenge, bytes(space.proof)))

    api.new_proof_of_space = record
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with service.manage():
        await until_started(farmer)
        say(ready=True, node_id=service._server.node_id.hex(), partial_proofs=len(plot.partial_proofs))
        while line := await lines.readline():
            _, first, last = line.split()
            for number in range(int(first), int(last)):
                message = plot.message(number)
                farmer.sps.setdefault(message.sp_hash, [])
                await api.partial_proofs(message, Harvester())
            say(asked=int(last) - int(first), pending=len(farmer.pending_solver_requests))


if __name__ == "__main__":
    asyncio.run(main())
