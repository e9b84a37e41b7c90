"""Build the C kernel and write the bill of materials when a wheel or editable install is made.

Idea     with the system's C compiler, or with the `ziglang` wheel, which is asked for only where
         there is none. A wheel with the library is for one platform and for every Python; where
         nothing can compile, or QUIETBIT_NO_NATIVE is set, the wheel is plain Python, and the
         library says once at run time what it lacks.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src", "quietbit", "kernel", "c")


def _loaded(path: Path) -> Any:
    """Load a file alone: the package cannot be imported before numpy is installed."""
    spec = importlib.util.spec_from_file_location(f"quietbit_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _builder(root: str) -> Any:
    return _loaded(Path(root, NATIVE, "build.py"))


def _platform() -> str:
    """Return the wheel's platform: the compiler makes one architecture, whatever Python is for."""
    name = sysconfig.get_platform().replace("universal2", platform.machine().lower())
    return name.replace("-", "_").replace(".", "_")


class NativeKernel(BuildHookInterface[Any]):
    """The hook that hatchling calls."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs besides hatchling.

        A compiler as a wheel, where the system has none.
        """
        wanted = not os.environ.get("QUIETBIT_NO_NATIVE")
        return ["ziglang"] if wanted and _builder(self.root).find_compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and add it and the bill of materials to the wheel."""
        core = self.metadata.core
        self._folder = tempfile.TemporaryDirectory()
        bill = _loaded(Path(self.root, "supply", "sbom.py")).write(
            Path(self._folder.name), Path(self.root), core.raw_name, core.version, core.dependencies
        )
        build_data["sbom_files"].append(str(bill))
        if os.environ.get("QUIETBIT_NO_NATIVE"):
            self.app.display_warning("QUIETBIT_NO_NATIVE is set: this wheel has no C kernel.")
            return
        builder = _builder(self.root)
        try:
            library = builder.build_library()
        except builder.BuildFailed as error:
            self.app.display_warning(f"This wheel has no C kernel, because {error}.")
            return
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written for the wheel."""
        self._folder.cleanup()
