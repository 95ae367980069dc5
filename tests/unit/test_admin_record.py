"""What commands make of the file by which they find a proxy, when something else lies in its place."""

from pathlib import Path

import pytest

from gpupool.core.files import ensure_private_dir
from gpupool.recompute.proxy.admin_record import FILE, AdminRecord


def _record(instance_id: str = "one") -> AdminRecord:
    return AdminRecord(
        instance_id=instance_id, pid=1, public_port=11989, host="127.0.0.1", port=40000, token="secret"
    )


def test_a_folder_in_its_place_is_no_record_and_stops_no_command(tmp_path: Path) -> None:
    ensure_private_dir(tmp_path / FILE)
    assert AdminRecord.read(tmp_path) is None
    _record().remove(tmp_path)
    assert (tmp_path / FILE).is_dir()


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, bytes(range(256)), b'{"pid": 1}', b'{"instance_id": "o']
)
def test_rubbish_in_its_place_is_no_record_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert AdminRecord.read(tmp_path) is None
    _record().write(tmp_path)
    assert AdminRecord.read(tmp_path) == _record()
