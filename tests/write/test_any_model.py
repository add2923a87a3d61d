"""Models that csf-tool has never seen: expand gives back what they are, and says what they never held."""

import json
from pathlib import Path

from tests.building import INDEX, MXFP4, change_json, matrix, mini_container, sha256, shard_bytes, write_json
from tests.commands import run, says


def test_expand_says_which_shards_the_container_never_held(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    index = json.loads((root / "metadata" / INDEX).read_text())
    index["weight_map"]["mtp.fc.weight"] = "mtp.safetensors"
    raw = json.dumps(index).encode()
    (root / "metadata" / INDEX).write_bytes(raw)
    for name, keys in (("manifest.json", ("metadata_sha256", "source_index_sha256")), ("build-contract.json", ())):
        document = json.loads((root / name).read_text())
        if keys:
            document["metadata_sha256"][INDEX] = sha256(raw)
        document["source_index_sha256"] = sha256(raw)
        write_json(root / name, document)
    result = run("expand", root, tmp_path / "out")
    assert result.exit_code == 0
    says(result, f"Note: {INDEX} lists shards that the container never held: 1 shard, mtp.safetensors")


def test_a_family_and_a_geometry_that_no_model_has(tmp_path: Path) -> None:
    module = "encoder.blocks.7.moe.experts.{}.proj"
    content = {
        "a b.safetensors": [
            tensor for expert in range(3) for tensor in matrix(module.format(expert), MXFP4, expert, rows=48, cols=20)
        ]
    }
    root = mini_container(tmp_path / "in", MXFP4, content=content)
    for name in ("manifest.json", "build-contract.json"):
        change_json(root / name, lambda document: document.update(family="something_new"))
    assert run("verify", root).exit_code == 0
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "a b.safetensors").read_bytes() == shard_bytes(
        content["a b.safetensors"], {"format": "pt"}
    )


def test_licences_travel_and_are_named(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    (root / "LICENSES").mkdir()
    for name in ("LICENSE", "NOTICE", "LICENSES/MIT.txt"):
        (root / name).write_text(f"terms of {name}")
    result = run("expand", root, tmp_path / "out")
    says(result, "Copied with their terms: LICENSE, LICENSES/MIT.txt, NOTICE.", f"original of example/mini@{'0' * 40}")
    assert (tmp_path / "out" / "LICENSES" / "MIT.txt").read_text() == "terms of LICENSES/MIT.txt"
