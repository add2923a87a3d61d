"""The layout that compress writes: the one given, or the one whose readers will find the planes."""

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.choices import CompressTo
from csf_tool.errors import UsageError
from csf_tool.write.recipes import Recipes
from csf_tool.write.selection import Rules, formats_meant
from csf_tool.write.targets import TARGETS, TargetLayout, target_for


def layout_to_write(checkpoint: Checkpoint, given: CompressTo | None, rules: Rules, recipes: Recipes) -> TargetLayout:
    """The layout to write: the one given, or the first that can be written and whose readers find planes.

    Raises:
        UsageError: none can be written.
    """
    formats = formats_meant(checkpoint.dense_planes, rules, checkpoint.doubtful, checkpoint.experts)
    asked = [TARGETS[given]] if given else list(TARGETS.values())
    possible = [target for target in asked if not target.refusal(formats, checkpoint.shards)]
    if not possible:
        default = target_for(formats)
        target = asked[0] if given else default
        instead = f"; use --to {default.layout.name}" if target.refusal(formats, ()) else ""
        instead += ", or --exclude the scales of all codecs but one" if len(formats) > 1 else ""
        raise UsageError(f"--to {target.layout.name}: {target.refusal(formats, checkpoint.shards)}{instead}")
    finds = len(possible) == 1 or find_planes(checkpoint, rules, recipes)
    return next((target for target in possible if finds or target.layout.keeps_dense_files), possible[0])


def find_planes(checkpoint: Checkpoint, rules: Rules, recipes: Recipes) -> bool:
    """Whether readers that go by recipes find any plane that the rules let be compressed."""
    planes, doubtful = checkpoint.dense_planes, checkpoint.doubtful
    known = (p for p in planes if p.fmt.has_hf_readers and recipes.cover(p.name))
    return any(not rules.refusal(plane, doubtful.get(plane.name), checkpoint.experts) for plane in known)
