"""What a wheel carries of compiled code: always the sources of the harvester's library, and more where asked for.

``GPUPOOL_WHEEL_SHIM=1`` adds that library, built with the flags of `gpupool.harvester.building`;
``GPUPOOL_WHEEL_COMPILED=1`` the compiled form of the proxy's hot modules (`scripts/compile_proxy.py`, which needs mypy and
setuptools: build with ``--no-isolation``). Such a wheel fits one kind of machine, the latter one Python too, so its name
says which; every other wheel stays one for all.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "GPUPOOL_WHEEL_SHIM"
COMPILED = "GPUPOOL_WHEEL_COMPILED"
FOLDER = "gpupool/harvester/native"
"""In the wheel."""


class ShimHook(BuildHookInterface[Any]):
    """Compiles on request."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the sources to a wheel; on request the library too, and name the wheel after the machine."""
        if version == "editable":  # the checkout has them
            return
        for path in sorted(Path(self.root, "native").glob("*.[ch]")):
            build_data["force_include"][str(path)] = f"{FOLDER}/{path.name}"
        if os.environ.get(VARIABLE) == "1":
            self._compile(build_data)
        if os.environ.get(COMPILED) == "1":
            self._compile_proxy(build_data)

    def _compile(self, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        from gpupool.harvester.building import compile_library, library_name

        built = Path(self.root) / "build" / library_name()
        built.parent.mkdir(exist_ok=True)
        compile_library(built)
        build_data["force_include"][str(built)] = f"{FOLDER}/{library_name()}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def _compile_proxy(self, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / "build" / "compiled"
        script = Path(self.root) / "scripts" / "compile_proxy.py"
        environment = os.environ | {"PYTHONPATH": str(Path(self.root) / "src")}
        subprocess.run([sys.executable, str(script), "--to", str(folder)], check=True, env=environment)
        for path in folder.rglob("*"):
            if path.is_file():
                build_data["force_include"][str(path)] = f"gpupool/_compiled/{path.relative_to(folder)}"
        version = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{version}-{version}-linux_{platform.machine()}"
