"""Interruptions and faults, for real: processes killed at every step, full disks, sources that change underneath."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.building import MXFP4, NVFP4, mini_container, mini_dense, mini_hf, tree
from tests.faults import Order, Outcome, Server, State, finish, start, state
from tests.fixture_types import Copied, Sample

JOURNAL = ".csf-tool"
LAST = ("config.json", "model.safetensors.index.json", "manifest.json")
"""Files that make a folder look like a checkpoint."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills and forks processes: POSIX only")


def visible(folder: Path) -> dict[str, bytes]:
    """The files that have their own names: not the journal, nothing partial."""
    found = tree(folder).items()
    return {n: data for n, data in found if not n.startswith(JOURNAL) and not n.endswith(".partial")}


def partials(folder: Path) -> list[str]:
    return [name for name in tree(folder) if name.endswith(".partial")]


def require_honest(out: Path, whole: dict[str, bytes]) -> None:
    """Check that nothing in an unfinished destination pretends to be more than it is."""
    there = visible(out)
    for name, data in there.items():
        assert data == whole[name], f"{name} is wrong or incomplete"
    if any(name in there for name in LAST):
        shards = {name for name in whole if name.endswith(".safetensors")}
        assert shards <= there.keys(), "looks like a checkpoint, and is not all there"
    if "manifest.json" in there:
        assert there == whole


DIRECTLY = ", past the cache"


def scenario(name: str, folder: Path) -> list[str]:
    """A small source in `folder`, and the command line that makes another checkpoint of it, without destination."""
    source = folder / "source"
    kind, _, jobs = name.removesuffix(DIRECTLY).partition(" -j")
    options = ["--device", "cpu", "--jobs", jobs] if jobs else []
    if kind == "expand hf":
        return ["expand", str(mini_hf(source)), *options]
    if kind == "expand container":
        return ["expand", str(mini_container(source)), *options]
    if kind == "compress hf":
        return ["compress", str(mini_dense(source)), "--to", "hf", "--keep-larger", *options]
    if kind == "compress container":
        return ["compress", str(mini_dense(source, MXFP4)), "--to", "container", "--keep-larger", *options]
    if kind == "convert container":
        return ["convert", str(mini_hf(source)), "--to", "container"]
    assert kind == "convert linked"
    return ["convert", str(mini_container(source, NVFP4)), "--to", "hf", "--link"]


SCENARIOS = [
    "expand hf -j1",
    "expand hf -j2",
    "expand container -j1",
    "expand container -j2",
    f"expand hf -j2{DIRECTLY}",
    "compress hf -j1",
    "compress container -j2",
    f"compress container -j1{DIRECTLY}",
    "convert container",
    "convert linked",
]


class Case:
    """A command with what it writes when nothing happens, and how many steps that takes."""

    def __init__(self, name: str, folder: Path, server: Server, *, reads: bool = False) -> None:
        self.server = server
        self.out = folder / "out"
        command = scenario(name, folder)
        argv = [command[0], command[1], str(self.out), *command[2:]]
        self.order = Order(argv, reads=reads, direct=name.endswith(DIRECTLY))
        self.source = Path(command[1])
        done = self.run()
        assert done.code == 0, done.err
        self.whole = tree(self.out)
        self.steps = done.steps
        self.resumed: set[State] = set()
        """States of the destination from which a run has gone on: many kills leave the same."""
        if self.order.direct and "pwrite" not in self.steps:
            pytest.skip("the temporary folder's file system has no O_DIRECT")
        shutil.rmtree(self.out)

    def run(self, at: int = 0, action: str = "", target: list[str] | None = None) -> Outcome:
        return self.server.run(replace(self.order, at=at, action=action, target=target or []))

    def require_resumed(self, where: str) -> None:
        """Run the command again: all must be there, and nothing else. From each state once."""
        left = state(self.out)
        if left in self.resumed:
            shutil.rmtree(self.out, ignore_errors=True)
            return
        self.resumed.add(left)
        done = self.run()
        assert done.code == 0, (where, done.err)
        assert tree(self.out) == self.whole, where
        assert not (self.out / JOURNAL).exists(), where
        shutil.rmtree(self.out)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_step(tmp_path: Path, server: Server, name: str) -> None:
    case = Case(name, tmp_path, server)
    assert len(case.steps) > 30
    for at in range(1, len(case.steps) + 1):
        assert case.run(at, "kill").code == -signal.SIGKILL
        where = f"killed at step {at} of {len(case.steps)}, {case.steps[at - 1]}"
        if case.out.exists():
            require_honest(case.out, case.whole)
        case.require_resumed(where)
    assert len(case.resumed) > 30


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path, server: Server) -> None:
    """Every attempt comes a few steps further, if at all."""
    for name in ("expand container -j2", "compress container -j2"):
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        case, rng = Case(name, folder, server), random.Random(1)
        for _ in range(6):
            for _ in range(5):
                if case.run(rng.randrange(1, 40), "kill").code == 0:
                    break
                require_honest(case.out, case.whole)
            if (case.out / JOURNAL).exists():
                case.require_resumed("killed five times")
            assert not case.out.exists() or tree(case.out) == case.whole
            shutil.rmtree(case.out, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample_name", "command"),
    [
        ("nvfp4-csf-hf", ["expand", "--device", "cpu", "--jobs", "1"]),
        ("nvfp4-csf-container", ["expand", "--device", "cpu", "--jobs", "2"]),
        ("mxfp4-csf-container", ["expand", "--device", "cpu", "--jobs", "2"]),
        ("nvfp4-dense", ["compress", "--to", "hf", "--device", "cpu", "--jobs", "2"]),
        ("mxfp4-dense", ["compress", "--to", "container", "--device", "cpu", "--jobs", "2"]),
        ("two-codecs-dense", ["compress", "--device", "cpu", "--jobs", "2"]),
    ],
)
def test_a_process_of_its_own_killed_at_random(
    sample: Sample, tmp_path: Path, server: Server, sample_name: str, command: list[str]
) -> None:
    operation, *options = command
    argv = [operation, str(sample(sample_name)), str(tmp_path / "whole"), *options]
    undisturbed = server.run(Order(argv, reads=True))
    assert undisturbed.code == 0
    whole = tree(tmp_path / "whole")
    rng = random.Random(sample_name)
    for i in range(2):
        out = tmp_path / str(i)
        argv[2] = str(out)
        at = rng.randrange(1, len(undisturbed.steps))
        assert finish(start(Order(argv, at, "kill", reads=True))).code == -signal.SIGKILL
        if out.exists():
            require_honest(out, whole)
        assert finish(start(Order(argv))).code == 0, at
        assert tree(out) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stride"),
    [("expand hf -j1", 1), (f"expand hf -j1{DIRECTLY}", 2), ("expand container -j2", 2), ("compress hf -j2", 3)],
)
def test_interrupted_at_every_step(tmp_path: Path, server: Server, name: str, stride: int) -> None:
    case = Case(name, tmp_path, server)
    for at in range(1, len(case.steps) + 1, stride):
        done = case.run(at, "interrupt")
        where = f"interrupted at step {at} of {len(case.steps)}, {case.steps[at - 1]}"
        if done.code == 0 and "-j2" in name:  # the other job had come to the end meanwhile
            assert tree(case.out) == case.whole
            shutil.rmtree(case.out)
            continue
        assert (done.code, done.err) == (130, "csf-tool: interrupted; run the same command again to continue\n"), where
        if case.out.exists():
            assert partials(case.out) == [], where
            require_honest(case.out, case.whole)
        case.require_resumed(where)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error", "stride"),
    [
        ("expand hf -j1", "ENOSPC", 1),
        (f"expand hf -j1{DIRECTLY}", "ENOSPC", 1),
        ("expand container -j2", "EIO", 2),
        ("compress container -j1", "ENOSPC", 2),
        ("convert linked", "EIO", 1),
    ],
)
def test_every_call_can_fail(tmp_path: Path, server: Server, name: str, error: str, stride: int) -> None:
    """Full disks and broken ones: said in one line that names the file, nothing half written, the rest goes on."""
    case = Case(name, tmp_path, server, reads=error == "EIO")
    for at in range(1, len(case.steps) + 1, stride):
        done = case.run(at, error)
        step = done.steps[at - 1]
        where = f"{error} at step {at} of {len(case.steps)}, {step}"
        if done.code == 0:  # there was another way
            assert step in ("copy_file_range", "mkdir", "unlink", "rmdir"), where
            assert tree(case.out) == case.whole, where
            shutil.rmtree(case.out)
            continue
        assert done.code == 3, (where, done.err)
        [line] = done.err.splitlines()
        assert os.strerror(getattr(errno, error)) in line, where
        assert line.split(": ")[1], where
        if case.out.exists():
            assert partials(case.out) == [] or step == "unlink", where
            require_honest(case.out, case.whole)
        case.require_resumed(where)


# Going on


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def half_done(case: Case) -> list[Path]:
    """Stop after the first shard; the shards that are finished then."""
    named = next(i for i in range(len(case.steps)) if case.steps[:i].count("rename") == 2)
    case.run(named + 5, "kill")
    found = shards(case.out)
    assert len(found) == 1
    return found


@pytest.fixture
def case(tmp_path: Path, server: Server) -> Case:
    return Case("expand hf -j1", tmp_path, server)


def test_finished_shards_are_not_written_again(case: Case) -> None:
    [finished] = half_done(case)
    before = finished.stat()
    done = case.server.run(replace(case.order, argv=[*case.order.argv, "--json"]))
    report = json.loads(done.out)
    assert report["resumed_shards"] == [finished.name]
    assert report["shards"] == [p.name for p in shards(case.out)]
    after = finished.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert tree(case.out) == case.whole


def test_a_finished_shard_that_was_cut_is_written_again(case: Case) -> None:
    [finished] = half_done(case)
    os.truncate(finished, finished.stat().st_size - 1)
    case.require_resumed("a cut shard")


def test_recheck_finds_a_finished_shard_that_was_damaged(case: Case) -> None:
    [finished] = half_done(case)
    with finished.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xee")
    plain = case.server.run(replace(case.order, at=1, action="kill"))  # by size alone it is not seen
    assert plain.code == -signal.SIGKILL
    assert finished.exists()
    done = case.server.run(replace(case.order, argv=[*case.order.argv, "--recheck", "--json"]))
    assert json.loads(done.out)["resumed_shards"] == []
    assert tree(case.out) == case.whole


def test_recheck_keeps_a_finished_shard_that_is_right(case: Case) -> None:
    [finished] = half_done(case)
    before = finished.stat()
    done = case.server.run(replace(case.order, argv=[*case.order.argv, "--recheck", "--json"]))
    assert json.loads(done.out)["resumed_shards"] == [finished.name]
    assert finished.stat().st_ino == before.st_ino


def test_another_revision_of_the_source_is_refused(case: Case, tmp_path: Path) -> None:
    half_done(case)
    shutil.copytree(case.source, tmp_path / "other")
    other = tmp_path / "other" / "model-00002-of-00002.safetensors"
    raw = bytearray(other.read_bytes())
    raw[-1] ^= 1
    other.write_bytes(raw)
    before = tree(case.out)
    done = case.server.run(Order(["expand", str(tmp_path / "other"), *case.order.argv[2:]]))
    assert done.code == 2
    assert 'holds an unfinished run of something else (source: "' in done.err
    assert tree(case.out) == before
    case.require_resumed("refused another source")


def test_another_operation_is_refused(case: Case, tmp_path: Path) -> None:
    half_done(case)
    before = tree(case.out)
    done = case.server.run(Order(["compress", str(mini_dense(tmp_path / "dense")), str(case.out), "--keep-larger"]))
    assert done.code == 2
    assert 'operation: "expand" there, "compress" now' in done.err
    assert tree(case.out) == before


def test_another_tool_version_is_refused(case: Case) -> None:
    half_done(case)
    path = case.out / JOURNAL / "journal.json"
    document = json.loads(path.read_text())
    document["tool"] = "csf-tool 0.0.1"
    path.write_text(json.dumps(document))
    done = case.run()
    assert done.code == 2
    assert 'tool: "csf-tool 0.0.1" there, "csf-tool ' in done.err


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("compress hf -j1", ["--include", "*layers.0.*"], "include"),
        ("compress container -j1", ["--family", "other"], "family"),
        ("convert container", ["--family", "other"], "family"),
    ],
)
def test_other_options_are_refused(tmp_path: Path, server: Server, name: str, more: list[str], said: str) -> None:
    case = Case(name, tmp_path, server)
    case.run(40, "kill")
    before = tree(case.out)
    done = server.run(replace(case.order, argv=[*case.order.argv, *more]))
    assert done.code == 2
    assert "options: " in done.err
    assert said in done.err
    assert tree(case.out) == before
    case.require_resumed("refused other options")


def test_a_file_of_somebody_else_stays(case: Case) -> None:
    """It has a shard's name, and no record says that this run wrote it."""
    half_done(case)
    theirs = case.out / "model-00002-of-00002.safetensors"
    theirs.write_bytes(b"precious")
    done = case.run()
    assert done.code == 3
    assert f"{theirs.name}: cannot be written: another process has made a file of that name" in done.err
    assert theirs.read_bytes() == b"precious"
    theirs.unlink()
    case.require_resumed("their file is gone")


def test_names_as_long_as_the_system_allows(tmp_path: Path, server: Server) -> None:
    source = mini_hf(tmp_path / "source")
    names = ["模型说明与使用许可协议" * 7 + ".md", "x" * 255, "a b%20c#?.txt"]
    for name in names:
        (source / name).write_text(name[:3])
    out = tmp_path / "out"
    done = server.run(Order(["expand", str(source), str(out), "--device", "cpu"]))
    assert done.code == 0, done.err
    assert [(out / name).read_text() for name in names] == [name[:3] for name in names]


# Full disks


def mount(where: Path, *options: str) -> None:
    """Mount an empty memory file system, or skip the test where that is not allowed."""
    where.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", *(["-o", ",".join(options)] if options else []), "tmpfs", str(where)]
    if shutil.which("mount") is None:
        pytest.skip("no mount command here")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many KiB, the first time, and gives it another size, later."""
    where = tmp_path / "disk"

    def sized(kib: int) -> Path:
        if where.exists():
            subprocess.run(["mount", "-o", f"remount,size={kib}k", str(where)], check=True)
        else:
            mount(where, f"size={kib}k")
        return where

    yield sized
    if where.exists():
        subprocess.run(["umount", str(where)], check=False, capture_output=True)


@pytest.mark.parametrize(
    ("name", "command", "kib"),
    [
        ("nvfp4-csf-hf", ["expand", "--device", "cpu", "--jobs", "1"], 2200),
        ("nvfp4-csf-container", ["expand", "--device", "cpu", "--jobs", "1"], 2200),
        ("nvfp4-csf-container", ["expand", "--device", "cpu", "--jobs", "2"], 3200),
        ("nvfp4-dense", ["compress", "--to", "hf", "--device", "cpu", "--jobs", "1"], 2200),
        ("mxfp4-dense", ["compress", "--to", "container", "--device", "cpu", "--jobs", "1"], 1400),
    ],
)
def test_a_full_disk(
    sample: Sample,
    tmp_path: Path,
    server: Server,
    small_disk: Callable[[int], Path],
    name: str,
    command: list[str],
    kib: int,
) -> None:
    operation, *options = command
    assert server.run(Order([operation, str(sample(name)), str(tmp_path / "whole"), *options])).code == 0
    whole = tree(tmp_path / "whole")
    out = small_disk(kib) / "out"
    order = Order([operation, str(sample(name)), str(out), *options])

    refused = server.run(order)
    assert refused.code == 3
    assert "not enough disk space: " in refused.err
    assert not out.exists()

    full = server.run(replace(order, free=1 << 40))
    assert full.code == 3
    [line] = full.err.splitlines()
    assert line.endswith("cannot be written: No space left on device")
    assert any(f"{shard} " in line.replace(":", " ") for shard in whole), line
    assert partials(out) == []
    require_honest(out, whole)
    finished = {p: p.stat().st_ino for p in shards(out)}
    assert finished, "the first shard had room"

    small_disk(16 << 10)
    assert server.run(order).code == 0
    assert tree(out) == whole
    assert {p: p.stat().st_ino for p in finished} == finished


def test_what_is_finished_needs_no_room_again(tmp_path: Path, server: Server) -> None:
    case = Case("expand hf -j1", tmp_path, server)
    [finished] = half_done(case)
    needed = sum(len(data) for name, data in case.whole.items() if name != finished.name)
    short = server.run(replace(case.order, free=needed - 1))
    assert short.code == 3
    assert short.err.endswith(", 1 B missing (--ignore-space overrides)\n")
    assert server.run(replace(case.order, free=needed)).code == 0
    assert tree(case.out) == case.whole


def test_a_lack_of_room_is_said_to_the_byte_before_anything_is_written(tmp_path: Path, server: Server) -> None:
    case = Case("expand container -j1", tmp_path, server)
    needed = sum(map(len, case.whole.values()))
    short = server.run(replace(case.order, free=needed - 7))
    assert (short.code, short.steps) == (3, [])
    assert short.err.endswith(", 7 B missing (--ignore-space overrides)\n")
    assert not case.out.exists()
    assert server.run(replace(case.order, free=needed)).code == 0


def test_a_destination_that_cannot_be_written(tmp_path: Path, server: Server) -> None:
    case = Case("expand hf -j1", tmp_path, server)
    mount(tmp_path / "disk", "ro")
    try:
        done = case.server.run(replace(case.order, argv=["expand", str(case.source), str(tmp_path / "disk" / "out")]))
        assert done.code == 3
        assert "Read-only file system" in done.err
        again = case.server.run(replace(case.order, argv=["expand", str(case.source), str(tmp_path / "disk")]))
        assert again.code == 3
        assert "Read-only file system" in again.err
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=False)


# Sources that fail or change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "action"),
    [("expand hf -j2", "move"), ("expand container -j1", "rewrite"), ("compress container -j1", "move")],
)
def test_a_shard_that_disappears_or_changes_at_any_moment(
    tmp_path: Path, server: Server, name: str, action: str
) -> None:
    case = Case(name, tmp_path, server, reads=True)
    shard = shards(case.source)[1]
    kept = tmp_path / "kept"
    shutil.copy2(shard, kept)
    away = tmp_path / "away"
    stopped = 0
    opened = len(server.run(Order(["stats", str(case.source)], reads=True)).steps)
    for at in range(opened + 1, len(case.steps) + 1, 3):
        done = case.run(at, action, [str(shard), str(away)])
        where = f"{action} at step {at} of {len(case.steps)}, {case.steps[at - 1]}: {done.err}"
        if action == "move" and away.exists():
            away.rename(shard)
        shutil.copy2(kept, shard)  # with its time
        if done.code == 0:
            assert tree(case.out) == case.whole, where
            shutil.rmtree(case.out)
            continue
        stopped += 1
        assert done.code == 3, where
        assert shard.name in done.err, where
        assert ("disappeared" if action == "move" else "changed") in done.err, where
        if case.out.exists():
            assert partials(case.out) == [], where
            require_honest(case.out, case.whole)
        case.require_resumed(where)
    assert stopped > 3


@pytest.mark.parametrize("name", ["expand hf -j2", "expand container -j1", "compress hf -j1", "compress container -j1"])
def test_a_shard_that_cannot_be_read(tmp_path: Path, server: Server, name: str) -> None:
    case = Case(name, tmp_path, server)
    bad = shards(case.source)[1]
    done = server.run(replace(case.order, bad=str(bad)))
    assert done.code == 3
    assert done.err.endswith(f"{bad.name}: cannot be read: Input/output error\n")
    if case.out.exists():
        assert partials(case.out) == []
        require_honest(case.out, case.whole)
    case.require_resumed("a read error")


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Copies a file to a disk whose second half then breaks: the kernel itself gives EIO from the file's middle on."""
    image, where = tmp_path / "image", tmp_path / "mounted"

    def system(*command: str) -> str:
        if shutil.which(command[0]) is None:
            pytest.skip(f"no {command[0]} here")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{command[0]}: not possible here: {done.stderr.strip()}")
        return done.stdout.strip()

    def attach(*options: str) -> None:
        loop = system("losetup", "--find", "--show", "--direct-io=on", str(image))
        attached.append(loop)
        system("mount", *options, loop, str(where))

    def detach() -> None:
        subprocess.run(["umount", str(where)], check=False, capture_output=True)
        while attached:
            subprocess.run(["losetup", "--detach", attached.pop()], check=False, capture_output=True)

    def copy(path: Path) -> Path:
        image.touch()
        os.truncate(image, 16 << 20)
        system("mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", str(image))
        where.mkdir()
        attach()
        copied = Path(shutil.copy2(path, where / path.name))
        detach()
        attach("-o", "ro")
        half = path.stat().st_size // 2 // 4096 * 4096
        os.truncate(image, image.read_bytes().index(path.read_bytes()[half : half + 8192]))
        return copied

    attached: list[str] = []
    yield copy
    detach()


@pytest.mark.parametrize("name", ["nvfp4-csf-hf", "nvfp4-csf-container"])
def test_a_disk_that_breaks(
    copied: Copied, tmp_path: Path, server: Server, failing_disk: Callable[[Path], Path], name: str
) -> None:
    source, out = copied(name), tmp_path / "out"
    bad = shards(source)[1]
    os.utime(bad, (1_600_000_000, 1_600_000_000))
    shutil.move(bad, tmp_path / "kept")
    bad.symlink_to(failing_disk(tmp_path / "kept"))
    order = Order(["expand", str(source), str(out), "--device", "cpu", "--jobs", "1"])
    done = server.run(order)
    assert done.code == 3
    assert done.err == f"csf-tool: {bad.relative_to(source)}: cannot be read: Input/output error\n"
    assert partials(out) == []
    assert [p.name for p in shards(out)] == ["model-00001-of-00003.safetensors"]
    bad.unlink()
    shutil.move(tmp_path / "kept", bad)
    assert server.run(order).code == 0
    assert server.run(replace(order, argv=[*order.argv[:2], str(tmp_path / "whole"), *order.argv[3:]])).code == 0
    assert tree(out) == tree(tmp_path / "whole")


# Several processes


def parts(case: Case, *which: str) -> list[Outcome]:
    """Run parts in processes of their own, all at once."""
    orders = [replace(case.order, argv=[*case.order.argv, "--shards", part]) for part in which]
    return [finish(process) for process in [start(order) for order in orders]]


@pytest.fixture
def three(sample: Sample, tmp_path: Path, server: Server) -> Case:
    """A checkpoint of three shards."""
    found = Case("expand hf -j1", tmp_path, server)
    found.order = replace(found.order, argv=["expand", str(sample("nvfp4-csf-hf")), *found.order.argv[2:]])
    assert found.run().code == 0
    found.whole = tree(found.out)
    shutil.rmtree(found.out)
    return found


@pytest.mark.slow
def test_parts_one_after_another(three: Case) -> None:
    for part, there in (("2/3", 1), ("1/3", 2)):
        [done] = parts(three, part)
        assert done.code == 0, done.err
        assert len(visible(three.out)) == there
        require_honest(three.out, three.whole)
    [done] = parts(three, "3/3")
    assert done.code == 0
    assert tree(three.out) == three.whole


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_all_parts_at_once(three: Case, attempt: int) -> None:
    done = parts(three, "1/3", "2/3", "3/3")
    assert [d.code for d in done] == [0, 0, 0], [d.err for d in done]
    assert tree(three.out) == three.whole


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_one_part_twice_at_once(three: Case, attempt: int) -> None:
    done = parts(three, "1/1", "1/1", "1/1")
    assert {d.code for d in done} <= {0, 2, 3}
    assert any(d.code == 0 for d in done), [d.err for d in done]
    assert all("internal error" not in d.err for d in done)
    assert tree(three.out) == three.whole


@pytest.mark.slow
def test_two_processes_that_compress_into_one_folder(sample: Sample, tmp_path: Path) -> None:
    order = Order(["compress", str(sample("mxfp4-dense")), str(tmp_path / "whole"), "--to", "container"])
    assert finish(start(order)).code == 0
    order.argv[2] = str(tmp_path / "out")
    done = [finish(process) for process in [start(order), start(order)]]
    assert sorted(d.code for d in done) in ([0, 0], [0, 3]), [d.err for d in done]  # late, it finds all complete
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.slow
def test_two_different_runs_into_one_folder(sample: Sample, tmp_path: Path) -> None:
    first = Order(["expand", str(sample("nvfp4-csf-hf")), str(tmp_path / "out"), "--device", "cpu"])
    other = Order(["expand", str(sample("nvfp4-csf-container")), str(tmp_path / "out"), "--device", "cpu"])
    done = [finish(process) for process in [start(first), start(other)]]
    assert sorted(d.code for d in done) == [0, 2], [d.err for d in done]
    winner = first if done[0].code == 0 else other
    assert finish(start(replace(winner, argv=[*winner.argv[:2], str(tmp_path / "whole"), "--device", "cpu"]))).code == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_partial_files_of_processes_that_live_are_left_alone(case: Case) -> None:
    half_done(case)
    import fcntl

    [left] = partials(case.out)
    with (case.out / left).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = case.run(case.steps.index("rename") + 1, "kill")
        assert done.code == -signal.SIGKILL
        assert left in partials(case.out)
    case.require_resumed("its writer is gone")
