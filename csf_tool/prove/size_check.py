"""The check of `verify --quick`: presence and sizes of files by a list of hashes, and no data."""

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.hash_list import HashList
from csf_tool.checkpoint.problems import errors, warnings
from csf_tool.codes import Code
from csf_tool.disk.reader import is_file
from csf_tool.prove.runtime_files import is_far
from csf_tool.prove.verdict import Check, Verified
from csf_tool.text import count


def check_sizes(result: Verified, checkpoint: Checkpoint, listed: HashList | None) -> None:
    """Compare files with the list, if there is one, and note that no other check was made."""
    for check in (result.streams, result.decode, result.source, result.reference):
        check.skip("not checked: --quick reads no data")
    result.stored.skip("--quick reads no data")
    if listed is not None:
        _compare(result.stored, checkpoint, listed)


def _compare(check: Check, checkpoint: Checkpoint, listed: HashList) -> None:
    for file in listed.names:
        path = checkpoint.root / file
        if is_far(checkpoint, file):
            continue
        if not is_file(path):
            check.fail(f"is missing, but {listed.name} lists it", Code.MISSING_FILE, file)
        elif (found := path.stat().st_size) != (stated := listed.sizes.get(file, found)):
            check.fail(f"is {found} bytes long, but {listed.name} has {stated}", Code.SIZE_DIFFERS, file)
    check.failures += errors(listed.faults)
    check.warnings += warnings(listed.faults)
    check.checked = len(listed.names)
    bare = check.checked - len(listed.sizes)
    sizes = [f"sizes of {count(len(listed.sizes), 'file')}"] if listed.sizes else []
    presence = [f"presence of {count(bare, 'file')} without a size"] if bare else []
    what = ", and ".join(sizes + presence)
    check.note = f"{what}, compared with {listed.name}; --quick reads no data"
