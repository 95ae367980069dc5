"""What a wheel carries of the harvester's library: always its sources, and with ``GPUPOOL_WHEEL_SHIM=1`` a built one.

A wheel with a built library fits one kind of machine, so its name says which; every other wheel stays one for all. The
library is compiled with the flags of `gpupool.harvester.building`, by the module itself.
"""

import os
import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "GPUPOOL_WHEEL_SHIM"
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

    def _compile(self, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        from gpupool.harvester.building import compile_library, library_name

        built = Path(self.root) / "build" / library_name()
        built.parent.mkdir(exist_ok=True)
        compile_library(built)
        build_data["force_include"][str(built)] = f"{FOLDER}/{library_name()}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
