"""What the engine's border makes of xllamacpp's faults, seen with a stand-in for the compiled module."""

import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpupool.core.errors import PortTakenError
from gpupool.engines.llama_server import EngineError, LlamaOptions, LlamaServer

OPTIONS = LlamaOptions(weights=Path("model.gguf"), alias="small", threads=2, parallel=3, context=512)


class StandIn(ModuleType):
    """The part of xllamacpp that is used; keeps what a server was started with."""

    def __init__(self, refuses: bool = False) -> None:
        super().__init__("xllamacpp")
        self.refuses = refuses
        self.started: list[Any] = []

    def CommonParams(self) -> SimpleNamespace:
        return SimpleNamespace(
            model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
        )

    def Server(self, parameters: Any) -> SimpleNamespace:
        if self.refuses:
            raise RuntimeError("Failed to init server")
        self.started.append(parameters)
        return SimpleNamespace(listening_address="http://127.0.0.1:7")

    def get_device_info(self) -> list[dict[str, object]]:
        return [{"name": "CPU"}]


def install(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", module)


def test_it_starts_with_what_it_was_told_and_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = StandIn()
    install(monkeypatch, engine)
    server = LlamaServer(OPTIONS)
    [started] = engine.started
    assert (server.address, server.devices) == ("http://127.0.0.1:7", ("CPU",))
    assert (started.model.path, started.model_alias, started.n_gpu_layers) == ("model.gguf", {"small"}, 0)
    assert (started.cpuparams.n_threads, started.cpuparams_batch.n_threads) == (2, 2)
    assert started.n_ctx == 3 * 512  # llama.cpp shares it out among the slots


def test_a_refused_model_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StandIn(refuses=True))
    with pytest.raises(EngineError, match=r"cannot serve model\.gguf") as caught:
        LlamaServer(OPTIONS)
    assert caught.value.exit_code == 3


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(EngineError, match="xllamacpp is not installed") as caught:
        LlamaServer(OPTIONS)
    assert "./up" in caught.value.remedy


def test_a_missing_system_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    (tmp_path / "xllamacpp.py").write_text(
        "raise ImportError('libgomp.so.1: cannot open shared object file')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EngineError, match=r"libgomp\.so\.1") as caught:
        LlamaServer(OPTIONS)
    assert "apt-get install libgomp1" in caught.value.remedy


def test_a_taken_port_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = StandIn()
    install(monkeypatch, engine)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            LlamaServer(LlamaOptions(weights=Path("model.gguf"), alias="small", port=port))
    assert engine.started == []
