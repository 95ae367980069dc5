"""How an installation is taken back without a lost look-up: first the way in, then, with nobody asking, the rest."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpupool.harvester.manifest import Manifest
    from gpupool.harvester.places import Places


def remove_way_in(manifest: "Manifest", loaded: list[int], restart: str) -> tuple[list[Path], str]:
    """Remove what puts the library into the next harvester; return the files, and what is left to do."""
    from gpupool.harvester.hook import NAME
    from gpupool.harvester.units import DROPIN

    removed = manifest.take_back([path for path in manifest.files if path.name in {NAME, DROPIN}])
    pids = ", ".join(map(str, loaded))
    return removed, (
        f"The harvester (pid {pids}) still has the library, so library and sidecar stay for now. Restart it"
        f" ({restart}), then run this again."
    )


def remove_everything(manifest: "Manifest", places: "Places") -> tuple[list[Path], str]:
    """End a sidecar that was started here and remove every file; return the files, and what is left to do."""
    import signal

    from gpupool.harvester.sidecar import END_SECONDS, started_here

    enabled = _enabled(manifest)
    if enabled:
        of_system = manifest.about["of_system"]
        command = f"systemctl {'' if of_system else '--user '}disable --now {' '.join(enabled)}"
        return [], f"systemd still runs the sidecar. Tell it to stop ({command}), then run this again."
    sidecar = started_here(places.sidecar_record)
    if sidecar is not None:
        sidecar.signal(signal.SIGTERM)
        sidecar.wait_gone(END_SECONDS)
    removed = manifest.take_back(list(manifest.files))
    for path in places.leavings():
        if path.is_socket() or path.is_file():
            path.unlink()
            removed.append(path)
    manifest.forget()
    return removed, ""


def _enabled(manifest: "Manifest") -> list[str]:
    """Return the units of ours that systemd is told to start."""
    from gpupool.harvester.units import SERVICE, SOCKET

    folder = manifest.about["units"]
    if folder is None:
        return []
    return [name for name in (SOCKET, SERVICE) if any(Path(folder).glob(f"*.wants/{name}"))]
