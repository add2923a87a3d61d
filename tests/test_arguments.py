"""Arguments as people give them: `~`, empty variables, one file, a name next door, a folder too high."""

import tarfile
from pathlib import Path

import pytest

from csf_tool.cli.home import home_expanded
from csf_tool.disk.near_paths import nearest_name, nearest_path
from csf_tool.errors import UsageError
from tests.building import tree
from tests.commands import run, says
from tests.downloads import hf_download, hub_cache
from tests.fixture_types import Copied, Sample

SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and another folder to work in."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


# ~


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("~", "{home}"),
        ("~/x y", "{home}/x y"),
        ("--figure=~/x.svg", "--figure={home}/x.svg"),
        ("-o~/x", "-o{home}/x"),
        ("a~/x", "a~/x"),
        ("./~/x", "./~/x"),
        ("hf://~/x", "hf://~/x"),
        ("~nobody-of-that-name", "~nobody-of-that-name"),
    ],
)
def test_home_in_a_word(home: Path, word: str, meant: str) -> None:
    assert home_expanded([word]) == [meant.format(home=home)]


def test_no_home_is_known(home: Path) -> None:
    with pytest.raises(UsageError, match="the home folder of ~nobody-of-that-name is unknown"):
        home_expanded(["~nobody-of-that-name/x"])
    Path("~nobody-of-that-name").mkdir()
    Path("~nobody-of-that-name/x").touch()
    assert home_expanded(["~nobody-of-that-name/x"]) == ["~nobody-of-that-name/x"]
    assert run("expand", "x", "~nobody-of-that-name/y").exit_code == 2


def test_home_in_every_path_argument(home: Path, copied: Copied) -> None:
    for name in ("nvfp4-csf-hf", "nvfp4-dense", "nvfp4-csf-container"):
        copied(name, f"home/{name}")
    for words in (
        ["stats", "~/nvfp4-csf-hf", "--figure=~/stats.svg"],
        ["inspect", "~/nvfp4-csf-hf", "model.language_model.layers.0.mlp.experts.1.up_proj", "--figure", "~/plane.svg"],
        ["plan", "~/nvfp4-csf-hf", "--figure", "~/plan.svg"],
        ["identity", "~/nvfp4-csf-hf", "--hash"],
        ["verify", "~/nvfp4-csf-hf", "--against", "~/nvfp4-dense", "--save-hashes", "~/hashes"],
        ["verify", "~/nvfp4-csf-hf", "--manifest", "~/hashes"],
        ["expand", "~/nvfp4-csf-hf", "~/expanded"],
        ["compress", "~/nvfp4-dense", "~/compressed"],
        ["convert", "~/nvfp4-csf-container", "~/converted", "--to", "hf"],
        ["demo", "--keep", "~/demo"],
    ):
        result = run(*words)
        assert result.exit_code == 0, result.output
    made = {"stats.svg", "plane.svg", "plan.svg", "hashes", "expanded", "compressed", "converted", "demo"}
    assert made <= {path.name for path in home.iterdir()}
    assert not list(Path().iterdir())


# One file, and a folder beside it


@pytest.mark.parametrize("inside", ["", "folder"])
def test_one_file_is_written_beside_itself(home: Path, sample: Sample, copied: Copied, inside: str) -> None:
    here = Path(inside)
    here.mkdir(exist_ok=True)
    for name, source in (("csf", "nvfp4-csf-hf"), ("dense", "nvfp4-dense")):
        (here / f"{name}.safetensors").write_bytes((sample(source) / SHARD).read_bytes())
    for words in (["expand", here / "csf.safetensors"], ["compress", here / "dense.safetensors"]):
        out = here / f"{words[0]}ed"
        for _ in range(2):
            result = run(*words, out)
            assert result.exit_code == 0, result.output
        assert run("verify", out, "--against", words[1]).exit_code == 0
    for around in (here, Path(), here.absolute(), here / "csf.safetensors"):
        result = run("expand", here / "csf.safetensors", around)
        assert result.exit_code == 2, result.output
    assert run("expand", here, here / "deeper").exit_code == 2
    assert not (here / "deeper").exists()


def test_the_shard_of_a_folder_is_written_into_it(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    before = tree(folder)
    assert run("expand", folder / SHARD, folder / "one").exit_code == 0
    assert {name: data for name, data in tree(folder).items() if not name.startswith("one/")} == before


def test_one_file_is_consumed_beside_itself(home: Path, sample: Sample) -> None:
    Path("one.safetensors").write_bytes((sample("nvfp4-csf-hf") / SHARD).read_bytes())
    Path("other.safetensors").write_bytes((sample("nvfp4-csf-hf") / SHARD).read_bytes())
    result = run("expand", "one.safetensors", "out", "--consume-source", "--yes")
    assert result.exit_code == 0, result.output
    assert sorted(tree(Path())) == ["other.safetensors", "out/one.safetensors"]


# Names next door


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nvfp4-csf-fh", "nvfp4-csf-hf"),
        ("NVFP4-CSF-HF", "nvfp4-csf-hf"),
        ("nvfp4-csf-fh/model-0001-of-00003.safetensors", f"nvfp4-csf-hf/{SHARD}"),
        (f"nvfp4-csf-hf/{SHARD[:-1]}", f"nvfp4-csf-hf/{SHARD}"),
    ],
)
def test_near_names_are_suggested(copied: Copied, tmp_path: Path, typed: str, meant: str) -> None:
    folder = copied("nvfp4-csf-hf")
    words = f"no such file or folder; did you mean {tmp_path / meant}?"
    for arguments in (
        ["stats", tmp_path / typed],
        ["verify", folder, "--against", tmp_path / typed],
        ["expand", tmp_path / typed, tmp_path / "out"],
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        says(result, words)


def test_near_names_of_lists(copied: Copied, tmp_path: Path) -> None:
    (tmp_path / "hashes.txt").touch()
    result = run("verify", copied("nvfp4-csf-hf"), "--manifest", tmp_path / "hases.txt")
    assert result.exit_code == 2
    says(result, f"no such file; did you mean {tmp_path / 'hashes.txt'}?")


def test_nothing_is_near(tmp_path: Path) -> None:
    assert nearest_path(tmp_path / "a" / "b") is None
    assert nearest_path(Path("/")) == Path("/")
    assert nearest_name("x", [f"x{i}" for i in range(100_000)]) is None


# Empty


@pytest.mark.parametrize("empty", ["", " ", "\t"])
@pytest.mark.parametrize(
    "words",
    [
        ["stats", "{}"],
        ["expand", "{}", "out"],
        ["expand", "x", "{}"],
        ["verify", "x", "--against", "{}"],
        ["verify", "x", "--hub={}"],
        ["verify", "x", "--manifest", "{}"],
        ["verify", "x", "--only", "{}"],
        ["verify", "x", "--save-hashes", "{}"],
        ["stats", "x", "--figure", "{}"],
        ["demo", "--keep", "{}"],
        ["bench", "--checkpoint", "{}"],
    ],
)
def test_empty_words_are_refused(words: list[str], empty: str) -> None:
    result = run(*[word.format(empty) for word in words])
    assert (result.exit_code, "is empty" in " ".join(result.output.split())) == (2, True), result.output


# A folder too high


def test_a_folder_of_checkpoints_names_five(copied: Copied, tmp_path: Path) -> None:
    for i in range(7):
        copied("nvfp4-csf-hf", f"many/model-of-{i}")
    (tmp_path / "many" / "old.zip").touch()
    named = ", ".join(f"model-of-{i}" for i in range(5))
    for words in (["stats"], ["verify"], ["plan"], ["identity"]):
        result = run(*words, tmp_path / "many")
        assert result.exit_code == 2
        says(result, f"; it contains 7 checkpoints: give one of them: {named} or 2 more")


def test_the_root_of_a_hub_cache(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "home" / "hub"
    hub_cache(sample("nvfp4-csf-hf"), cache)
    [folder] = cache.iterdir()
    for i in range(6):
        (cache / f"models--org--x{i}").mkdir()
    for place in (cache, cache.parent):
        said = f"this is a Hub cache: give one of the snapshots in it: {folder.relative_to(place)}, "
        says(run("stats", place), said, " or 2 more")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    name = folder.name.removeprefix("models--").replace("--", "/")
    for place in (cache, cache.parent):
        said = f"this is the Hub cache: give a repository in it: {name}, org/x0"
        says(run("stats", place), said, " or 2 more")
    says(run("stats", folder), f"did you mean {folder}/snapshots/")


@pytest.mark.parametrize(("name", "said"), [("x.gguf", "is a GGUF file (llama.cpp): csf-tool reads safetensors only")])
def test_files_of_other_tools(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF\3\0\0\0" + bytes(100))
    for words in (["stats"], ["verify"], ["verify", tmp_path / name, "--against"]):
        says(run(*words, tmp_path / name), f"{tmp_path / name}: {said}")


@pytest.mark.parametrize("how", ["", "gz", "xz", "bz2"])
@pytest.mark.parametrize("name", ["x.tar", "x.safetensors", "x"])
def test_archives(tmp_path: Path, sample: Sample, how: str, name: str) -> None:
    with tarfile.open(tmp_path / name, f"w:{how}") as archive:  # type: ignore[call-overload]
        archive.add(sample("nvfp4-csf-hf"))
    result = run("stats", tmp_path / name)
    assert result.exit_code == (1 if name == "x.safetensors" else 2)
    says(result, "unpack it first")


# Files that are missing or broken


def test_missing_shards_are_counted_with_the_command(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    first, second, third = (f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))
    (folder / second).unlink()
    says(run("stats", folder), f"{second}: is missing, or is a link to a missing file: download it again\n")
    hf_download(folder)
    (folder / third).unlink()
    again = (
        f"download them again, with `hf download ORG/NAME {second} {third} --revision {'b' * 40} --local-dir {folder}`"
    )
    for words in (["stats", folder], ["verify", folder]):
        says(run(*words), f": 2 of 3 shards are missing, {second}, {third}: {again}")
    (folder / first).unlink()
    assert run("stats", folder).exit_code == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [("nvfp4-csf-hf", "model.safetensors.index.json"), ("nvfp4-csf-container", "manifest.json")],
)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"weight_map": 3}'])
def test_a_broken_document_is_named_with_its_folder(copied: Copied, name: str, file: str, content: bytes) -> None:
    folder = copied(name)
    (folder / file).write_bytes(content)
    for words in (["stats", folder], ["verify", folder], ["expand", folder, folder.parent / "out"]):
        result = run(*words)
        assert result.exit_code in (1, 2)
        says(result, str(folder))
    if (name, content) != ("nvfp4-csf-container", b'{"weight_map": 3}'):
        says(run("stats", folder), f"{folder / file}: ", "; download that file again")
