"""Requests to `verify`, of the command and of the Python function alike."""

from dataclasses import dataclass
from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.hash_list import read_hash_list
from csf_tool.checkpoint.page_cache import should_drop_cache
from csf_tool.checkpoint.published import place_of
from csf_tool.choices import CrossCheck
from csf_tool.coders.decoder import NumpyDecoder, make_decoder
from csf_tool.devices import require_device_name
from csf_tool.disk.new_file import require_writable
from csf_tool.errors import UsageError
from csf_tool.hub.name import list_on_hub
from csf_tool.progress import Progress
from csf_tool.prove.options import VerifyOptions
from csf_tool.prove.verdict import Verified
from csf_tool.prove.verify import verify
from csf_tool.running.jobs import default_jobs


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """The options as they are given; see `csf_tool.verify` for their meaning."""

    hub: str | None
    tensors_only: bool
    all_tensors: bool
    device: str
    cross_check: CrossCheck | None
    """A sample, where nothing was asked for."""
    manifest: Path | None
    quick: bool
    only: tuple[str, ...]
    save_hashes: Path | None
    jobs: int | None
    drop_cache: bool | None

    def require_sense(self, option: str, *, against: bool) -> None:
        """Refuse what does not go together, or cannot be written, before there is work to lose.

        `option` is what `save_hashes` is called where it is given; `against` says whether there is a reference.

        Raises:
            UsageError: the options do not go together, or the file for hashes exists.
            EnvironmentFault: that file cannot be written.
        """
        require_device_name(self.device)
        saved, only = self.save_hashes, self.only
        if self.quick and (against or only or saved or self.cross_check or self.all_tensors):
            others = "--against, --only, --save-hashes, --cross-check and --all-tensors"
            raise UsageError(f"--quick reads no data: give it without {others}")
        if self.tensors_only and not against:
            raise UsageError("--tensors-only: needs a checkpoint to compare with: give --against DENSE")
        if saved and (only or saved.exists()):
            raise UsageError(f"--save-hashes {saved}: {'lists all files: give no --only' if only else 'exists'}")
        if saved:
            require_writable(saved, option)

    @property
    def without_effect(self) -> str | None:
        """A sentence about an option that was given and changes nothing, where that does no harm."""
        if self.cross_check is None or self.device not in ("auto", "cpu"):
            return None
        return f"--cross-check {self.cross_check}: has no effect, because the CPU decodes all planes: see --device cuda"

    def run(self, checkpoint: Checkpoint, against: Checkpoint | None, progress: Progress) -> Verified:
        """Verify, and save the hashes if that is asked for and no check failed.

        Raises:
            As `csf_tool.prove.verify.verify`.
        """
        decoder = NumpyDecoder() if self.quick else make_decoder(self.device, self.cross_check or CrossCheck.SAMPLE)
        options = VerifyOptions(
            jobs=self.jobs or default_jobs(),
            drop_cache=should_drop_cache(checkpoint, self.drop_cache),
            all_tensors=self.all_tensors,
            tensors_only=self.tensors_only,
            published=[] if self.hub is None else list_on_hub(self.hub).published_hashes(),
            hub=self.hub or "",
            only=self.only,
            quick=self.quick,
            listed=read_hash_list(self.manifest, place_of(checkpoint)) if self.manifest else None,
            save_hashes=self.save_hashes.name if self.save_hashes else "",
        )
        found = verify(checkpoint, against, decoder, progress, options)
        if self.save_hashes and found.hashes:
            self.save_hashes.write_text(found.hashes.render(), "utf-8")
        return found
