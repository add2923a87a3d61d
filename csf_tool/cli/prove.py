"""Commands that prove: the bytes of a checkpoint, and which checkpoint it is."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from csf_tool.choices import CrossCheck, IdentityBy
from csf_tool.cli.command import detail, guarded, note, open_argument, say, show
from csf_tool.cli.help import OUTPUT, SPEED, WHAT
from csf_tool.cli.options import (
    AllShardsOption,
    CacheOption,
    CheckpointArgument,
    CheckpointsArgument,
    DeviceOption,
    JobsOption,
    JsonOption,
)
from csf_tool.errors import CsfToolError

if TYPE_CHECKING:
    from csf_tool.checkpoint.checkpoint import Checkpoint
    from csf_tool.prove.verdict import Verified

COMPARE = "Compare with"
"""The title of verify's options that name something to compare with."""


@guarded
def verify(
    checkpoints: CheckpointsArgument,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="DENSE",
            rich_help_panel=COMPARE,
            help="A dense checkpoint, here or on the Hub.",
        ),
    ] = None,
    tensors_only: Annotated[
        bool,
        typer.Option(
            "--tensors-only",
            rich_help_panel=COMPARE,
            help="With --against: compare tensors only, no config or tokenizer.",
        ),
    ] = False,
    hub: Annotated[
        str | None,
        typer.Option(
            metavar="ORG/NAME", rich_help_panel=COMPARE, help="The hashes that the Hub lists for ORG/NAME[@REVISION]."
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=COMPARE,
            help="A list of hashes by sha256sum or --save-hashes.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", rich_help_panel=WHAT, help="Check only headers, and sizes in --manifest. Takes seconds."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARD",
            rich_help_panel=WHAT,
            help="Read only this shard (name or glob; can be repeated).",
        ),
    ] = None,
    all_tensors: Annotated[
        bool,
        typer.Option("--all-tensors", rich_help_panel=WHAT, help="On the Hub: fetch every tensor, not just scales."),
    ] = False,
    all_shards: AllShardsOption = False,
    device: DeviceOption = "auto",
    cross_check: Annotated[
        CrossCheck | None,
        typer.Option(
            metavar="|".join(CrossCheck),
            rich_help_panel=SPEED,
            help="With --device cuda: planes that the CPU decodes too, to check the GPU.",
            show_default=CrossCheck.SAMPLE.value,
        ),
    ] = None,
    jobs: JobsOption = None,
    drop_cache: CacheOption = None,
    save_hashes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Write a SHA-256 list of all files here, if all checks pass.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check the bytes against every known hash, and say what could not be proved.

    Of several checkpoints each is checked by itself, none against another: one row each, or one document with --json.

    Examples:
    csf-tool verify Qwen-CSF
    csf-tool verify Qwen-CSF --against Qwen-NVFP4
    """
    from csf_tool.cli.several import look_at_each, refuse_for_several, show_several
    from csf_tool.coders.decoder import make_decoder
    from csf_tool.documents.verify import verify_document
    from csf_tool.prove.request import VerifyRequest
    from csf_tool.report.problems import point_to_entries, worst_first
    from csf_tool.report.progress import progress_bar
    from csf_tool.report.several import verify_table
    from csf_tool.report.verify import verify_report

    request = VerifyRequest(
        hub=hub or None,
        tensors_only=tensors_only,
        all_tensors=all_tensors,
        device=device,
        cross_check=cross_check,
        manifest=manifest,
        quick=quick,
        only=tuple(only or ()),
        save_hashes=save_hashes,
        jobs=jobs,
        drop_cache=drop_cache,
    )
    request.require_sense("--save-hashes", against=bool(against))
    if request.without_effect:
        note(request.without_effect)
    several = len(checkpoints) > 1
    if several:
        for_one = {"--against": against, "--hub": hub, "--manifest": manifest, "--only": only}
        refuse_for_several(checkpoints, for_one | {"--save-hashes": save_hashes})

    def check(opened: "Checkpoint") -> "Verified":
        reference = open_argument(against, all_shards=all_shards) if against else None
        if several and not quick:
            note(f"verifying {opened.label}")
        with progress_bar() as progress:
            found = request.run(opened, reference, progress)
        where = f"{opened.label}: " if several else ""
        for file in sorted({*found.checked_files, *found.failed_files}):
            detail(f"{where}{file}: {'FAILED' if file in found.failed_files else 'OK'}")
        return found

    if several:
        if not quick:
            make_decoder(device)  # a device that is not there is no fault of each checkpoint
        all_found = look_at_each(checkpoints, check, lambda found: found.findings, all_shards=all_shards)
        if len(checkpoints) == 2 and not any(isinstance(found, CsfToolError) for _, found in all_found):
            note(
                f"each is checked by itself; to compare: csf-tool verify {' --against '.join(map(quote, checkpoints))}"
            )
        return show_several(all_found, lambda found: found.ok, verify_document, verify_table, as_json=as_json)
    found = check(open_argument(checkpoints[0], all_shards=all_shards))
    show(found, verify_document, verify_report, as_json)
    point_to_entries(problem.code for problem in worst_first(found.findings))
    if save_hashes and not found.hashes:
        say(f"{save_hashes} was not written, because a check failed")
    return 0 if found.ok else 1


@guarded
def identity(
    checkpoint: CheckpointArgument,
    by: Annotated[
        IdentityBy,
        typer.Option(
            metavar="|".join(IdentityBy),
            rich_help_panel=WHAT,
            help="What represents each shard: its SHA-256, or (much weaker) its size.",
        ),
    ] = IdentityBy.DIGESTS,
    compute_hashes: Annotated[
        bool, typer.Option("--hash", rich_help_panel=WHAT, help="Hash every shard instead of trusting records.")
    ] = False,
    all_shards: AllShardsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Print the content identity that launchers pin, and its basis. The same files have the same identity everywhere.

    By digests, it uses the SHA-256 that the Hub, a Hub cache, `hf download`, SHA256SUMS or a container's manifest
    recorded. If none is recorded, it asks for --hash. It never uses sizes instead by itself.

    Examples:
    csf-tool identity Qwen-CSF
    csf-tool identity Qwen-CSF --hash --json
    """
    from csf_tool.documents.identity import identity_document
    from csf_tool.prove.identity import find_identity
    from csf_tool.report.console import print_err, print_json, print_out
    from csf_tool.report.problems import print_problems
    from csf_tool.report.progress import progress_bar
    from csf_tool.report.volume import is_quiet

    opened = open_argument(checkpoint, all_shards=all_shards)
    with progress_bar() as progress:
        found = find_identity(opened, by, progress, compute_hashes=compute_hashes)
    print_problems(found.problems, "--json")
    if as_json:
        print_json(identity_document(found))
    else:
        print_out(f"{found.digest}  {found.basis.value}")
        if not is_quiet():
            print_err(f"{found.scheme}, {found.basis.words}")
    return 0
