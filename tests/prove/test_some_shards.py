"""verify --only: the shards that failed, again and alone."""

import json
from pathlib import Path

from tests.building import mini_container, overwrite, shard_name
from tests.commands import run, says


def test_failed_shards_are_named_and_verified_again_alone(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in", shards=8)
    bad = f"tensors/{shard_name(5, 8)}"
    good = (root / bad).read_bytes()
    overwrite(root / bad, len(good) - 1, bytes([good[-1] ^ 1]))
    first = run("verify", root, "--json", "-j", 3)
    assert json.loads(first.stdout)["failed_files"] == [bad]
    again = run("verify", root, "--only", shard_name(5, 8))
    assert again.exit_code == 1
    says(again, "Only 1 of 8 shards was looked at.", f"{bad}: sha256 is ")
    (root / bad).write_bytes(good)
    mended = run("verify", root, "--only", bad, "--json")
    assert mended.exit_code == 0
    document = json.loads(mended.stdout)
    assert document["shards"] == {"checked": 1, "of": 8}
    decode, source = (next(c for c in document["checks"] if c["name"] == name) for name in ("decode", "source"))
    assert (decode["checked"], source["status"], source["checked"]) == (3, "passed", 4)
    says(run("verify", root, "--only", "*-00005-*", "--only", "*-00006-*"), "Only 2 of 8 shards")
    wrong = run("verify", root, "--only", "model-9")
    assert wrong.exit_code == 2
    says(
        wrong,
        "--only model-9: no readable shard has this name; the checkpoint has 8 shards, for example tensors/model-",
    )
