"""A program that behaves like a Gigahorse server as far as its keeper can see: recorded lines, frames in and out."""

import sys
from pathlib import Path

ECHO = f"""#!{sys.executable}
import socket, sys, threading
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
listener = socket.create_server((given["--host"], int(given["-p"])))
print("[chiapos] Using 16 / 18 CPU threads")
print("[chiapos] Using 1 / 1 CUDA devices")
print("Using 16 / 18 CPU threads")
print("Using NVIDIA GeForce RTX 3070 (CUDA (native))")
print(f"ReComputeServer listening on {{given['--host']}} port {{given['-p']}}", flush=True)
def serve(client):
    while frame := client.recv(65536):
        client.sendall(frame[:4] + frame[:3:-1] if frame != b"\\x01\\0\\0\\0!" else b"")
        print("[1] Request from 127.0.0.1 for K32 C7 took 12.5 ms (used_gpu = 1, is_fail = 0)", flush=True)
        if frame.endswith(b"!"):
            import os
            os._exit(134)
    client.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
FRAME, REPLY = b"\x04\0\0\0beat", b"\x04\0\0\0taeb"
"""A frame, and the answer to it: the payload in reverse."""


def write_double(folder: Path) -> Path:
    """Write the program into ``folder`` and return its path. A frame that ends with ``!`` kills it."""
    path = folder / "chia_recompute_server"
    path.write_text(ECHO)
    path.chmod(0o755)
    return path
