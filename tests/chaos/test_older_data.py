"""A state folder that an earlier version left behind in mid-life, taken up by this one.

One folder in `tests/data` a schema revision: the database as SQL, and the agent's files. Whoever adds a revision
adds a folder, so that every version that was ever run can be come from.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpupool.core.files import write_private
from gpupool.store.schema import NEWEST, REVISIONS
from light_pool import LightPool

DATA = Path(__file__).resolve().parent.parent / "data"


def lay_down(pool: LightPool, revision: str) -> None:
    """Make the state folder as a pool of that revision left it."""
    kept = DATA / f"state_{revision}"
    pool.home.prepare()
    with closing(sqlite3.connect(pool.home.database)) as database:
        database.executescript((kept / "pool.sql").read_text())
    placement = "pl-01m8q9f3jtxn7mk9xz790t32re"
    run = pool.home.agent / "runs" / placement
    run.mkdir(parents=True, mode=0o700)
    write_private(run / "record.json", (kept / "record.json").read_text())
    for name in ("journal.json", "node.key"):
        write_private(pool.home.agent / name, (kept / name).read_text())


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_data_of_an_earlier_version_is_taken_up(tmp_path: Path, revision: str) -> None:
    async with LightPool(tmp_path) as pool:
        lay_down(pool, revision)
        await pool.start()
        kept = await pool.active("kept")
        assert [item["state"] for item in kept["placements"]] == ["active", "failed"]
        assert kept["placements"][1]["reason"] == "lost: machine restarted"
        wanted = {item["name"]: item["wanted"] for item in await pool.get("/v1/workloads")}
        assert wanted == {"kept": 1, "off": 0, "failing": 1}
        (node,) = await pool.get("/v1/nodes")
        assert node["id"] == "node-01m8q9f3g77rkjy14j0pthmtc9"
        assert [event["kind"] for event in await pool.get("/v1/events?limit=3")] == [
            "control.started",
            "node.joined",
            "node.connected",
        ]

        async def tried_again() -> bool:
            return len((await pool.workload("failing"))["placements"]) > 1

        await pool.until(tried_again, "another try of what failed")
        await pool.delete("failing")
        await pool.check_sound()
        with closing(sqlite3.connect(pool.home.database)) as database:
            assert database.execute("SELECT version_num FROM alembic_version").fetchone() == (NEWEST,)
