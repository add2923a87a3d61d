"""Kinds of faults: one code each, by which programs tell them apart and docs/troubleshooting.md says what to do.

A kind is one line here: its code, which stays the same from version to version, and one sentence. That page has an
entry for kinds that need more than this sentence, and a table of all others at its end.
"""

from enum import StrEnum
from typing import NamedTuple


class Code(StrEnum):
    """The kind of a fault; JSON reports have the value, and docs/troubleshooting.md has an anchor of that name."""

    def __new__(cls, code: str, meaning: str) -> "Code":
        """A code with its sentence."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    meaning: str
    """The meaning, in one sentence."""

    # What is this folder?
    NOT_A_CHECKPOINT = "not-a-checkpoint", "Nothing at this place is a checkpoint that csf-tool reads."
    NO_SHARD_HERE = "no-shard-here", "Index or manifest are here, and none of the shards that they list."
    NO_SHARD_READABLE = "no-shard-readable", "Shards are here, and not one of them can be read."
    DOWNLOAD_BEGUN = "download-begun", "There is nothing but files that a downloader has begun."
    DOWNLOAD_UNFINISHED = "download-unfinished", "Something unfinished of a downloader lies beside the shards."
    RUN_UNFINISHED = "run-unfinished", "A csf-tool run into this folder is not finished."
    GIT_POINTER = "git-pointer", "The file is a git-LFS or git-Xet pointer, not the file itself."
    WEB_PAGE = "web-page", "The file is a web page, not the file itself."
    SAVED_MESSAGE = "saved-message", "The file is a text, such as a server's error message that was saved."
    NEVER_FILLED = "never-filled", "The file begins with zeros: a download made room for it and never filled it."
    OTHER_FORMAT = "other-format", "The file is of another format than its name says."
    UNKNOWN_SCHEMA = "unknown-schema", "The manifest states a schema that this csf-tool does not know."
    MIXED_LAYOUTS = "mixed-layouts", "A container and a Hugging Face checkpoint lie in one folder."
    SERVING_DIRECTORY = "serving-directory", "The folder is a serving directory whose weights are not here."
    NO_INDEX = "no-index", "There are shards, and no index that lists them."
    CONFIG_FORMAT = "config-format", "A config speaks of other formats than the tensors or another config have."
    CONFIG_CONTRADICTS_ITSELF = "config-contradicts-itself", "A config states its quantisation twice, and differently."
    CONFIG_PRECISION = "config-precision", "A config says that modules are FP4 and they are not, or the reverse."
    SCALE_LAYOUT = "scale-layout", "Block scales may be padded or in tile order, which cannot be told from a shape."
    STACKED_SCALES = "stacked-scales", "The block scales of all experts are one tensor, which CSF has no planes for."

    # Files and documents
    MISSING_FILE = "missing-file", "A file that the checkpoint needs is not here."
    HUB_LACKS_FILE = "hub-lacks-file", "The Hub lists a file, and answers that it is not there."
    NOT_A_FILE = "not-a-file", "A folder, a pipe or a device has a file's name."
    UNUSABLE_NAME = "unusable-name", "A file has a name that cannot be used."
    UNSAFE_NAME = "unsafe-name", "A file's name leaves the checkpoint's folder or is not a plain path."
    TOO_LARGE = "too-large", "A file of text is larger than any that is read."
    INVALID_JSON = "invalid-json", "A file or a header is not valid JSON, or not of the kind that belongs there."
    ODD_JSON = "odd-json", "A JSON file has what some readers refuse, or take differently."
    INVALID_FIELD = "invalid-field", "A field of a document is not what it has to be."
    DAMAGED_FIELD = "damaged-field", "A word that every such document has is spelt wrongly: the file is damaged."
    INDEX_LACKS_SHARD = "index-lacks-shard", "The index does not list a shard that is here."
    INDEX_LACKS_TENSOR = "index-lacks-tensor", "The index does not list a tensor that a shard holds."
    INDEX_NAMES_MISSING_TENSOR = "index-names-missing-tensor", "The index lists a tensor that no shard holds."
    INDEX_NAMES_OTHER_SHARD = "index-names-other-shard", "The index places a tensor in another shard than holds it."
    SHARD_LEFT_ASIDE = "shard-left-aside", "A shard is not in the index, and what it holds stands in those that are."
    RANK_FILES = "rank-files", "There is one file a rank of a tensor-parallel engine, and no whole tensors."
    TENSOR_IN_TWO_SHARDS = "tensor-in-two-shards", "Two shards hold a tensor of one name."

    # Headers and data of shards
    NOT_SAFETENSORS = "not-safetensors", "The file is no safetensors file, or is cut short inside its header."
    INVALID_HEADER = "invalid-header", "What a header says of a tensor makes no sense."
    UNKNOWN_DTYPE = "unknown-dtype", "A tensor has a dtype that safetensors does not name."
    TRUNCATED = "truncated", "The shard is shorter than its header says."
    TRAILING_BYTES = "trailing-bytes", "The shard is longer than its header says."
    DATA_OVERLAP = "data-overlap", "Two tensors share bytes."
    DATA_HOLE = "data-hole", "Bytes between the tensors belong to none."
    ZERO_WEIGHT = "zero-weight", "A weight or a plane is entirely zero, as failed downloads are."
    ZERO_STREAM = "zero-stream", "A fixed stream is entirely zero, its exceptions are not."
    FILE_SHRANK = "file-shrank", "The file became shorter while it was read."

    # Hashes
    HASH_DIFFERS = "hash-differs", "The file is not the one whose hash was published."
    HASH_DAMAGED = "hash-damaged", "A line of a hash list or a note is damaged, contradicts another, or has no hash."
    NO_RECORDED_HASH = "no-recorded-hash", "No SHA-256 of a shard is recorded, and an identity by digests needs it."
    MIXED_REVISIONS = "mixed-revisions", "The files were downloaded from different revisions."
    SIZE_DIFFERS = "size-differs", "The file is not as long as a manifest or a list says."
    SOURCE_DIFFERS = "source-differs", "What the streams decode to is not what the original had."
    CANNOT_BE_REBUILT = "cannot-be-rebuilt", "The original shard cannot be rebuilt: some of its bytes cannot be had."
    OTHER_LIST = "other-list", "The list of hashes is of another repository, revision or folder."

    # Streams and planes
    BASE_TOO_HIGH = "base-too-high", "A row's base is above the highest of the format."
    PADDING_BITS = "padding-bits", "Bits past the last column of a row are not zero."
    POSITION_OUTSIDE = "position-outside", "An exception's position is outside its plane."
    POSITION_ORDER = "position-order", "The positions of exceptions do not strictly increase."
    NEEDLESS_EXCEPTION = "needless-exception", "An exception lies inside its row's window: it need not be one."
    STREAM_SIZE = "stream-size", "A stream has another dtype, shape or size than its plane takes."
    UNREADABLE_STREAMS = (
        "unreadable-streams",
        "The streams cannot be read or decoded, for what was said of them before.",
    )
    HALF_A_PAIR = "half-a-pair", "A fixed stream or an exception list has no partner."
    GEOMETRY_UNKNOWN = "geometry-unknown", "Nothing tells how many rows and columns a plane has."
    GEOMETRY_CONTRADICTS = "geometry-contradicts", "Receipt, stream and weight give a plane different rows and columns."
    GEOMETRY_IMPOSSIBLE = "geometry-impossible", "The format has no planes of these rows and columns."
    NOT_FP4_WEIGHT = "not-fp4-weight", "The weight beside a plane does not hold FP4 codes of the plane's groups."
    PLANE_STORED_TWICE = "plane-stored-twice", "A plane is stored dense as well, or in two formats."
    WEIGHT_WITHOUT_SCALE = "weight-without-scale", "An FP4 weight has no block scale: what its codes mean is lost."
    SCALE_WITHOUT_WEIGHT = "scale-without-weight", "A block scale or a global scale has no FP4 weight beside it."
    SCALE_SHAPE = "scale-shape", "A block scale is not of the shape that its FP4 weight wants."
    SCALE_LABEL = "scale-label", "Block scales have a dtype or a group size that no FP4 format has."
    COMPANION_MISSING = "companion-missing", "A weight lacks a scale, or an expert a weight, that its siblings have."
    UNKNOWN_CODEC = "unknown-codec", "A stream is of a codec that this csf-tool does not know."
    NO_STACK = "no-stack", "The planes of a layer's experts cannot be stacked: some are missing, or they are not alike."

    # A container's documents, and recipes
    NO_RECEIPTS = "no-receipts", "A container has no receipts or no contract."
    DOCUMENTS_CONTRADICT = "documents-contradict", "A container's documents contradict each other or the shards."
    SHARD_NOT_IN_MANIFEST = "shard-not-in-manifest", "A shard is here that the manifest does not list."
    STRAY_RECEIPT = "stray-receipt", "A receipt is here of no shard that the manifest lists."
    CONTRACT_DIFFERS = "contract-differs", "The contract and the shards do not have the same tensors."
    RECEIPT_DIFFERS = "receipt-differs", "The receipts and the shards do not have the same tensors or sizes."
    RECIPE_NOT_MARKED = "recipe-not-marked", "A module has CSF streams, and no recipe that is marked so."
    RECIPE_WITHOUT_STREAMS = "recipe-without-streams", "A recipe is marked as CSF, and there are no streams of it."

    # Against a reference
    REFERENCE_DIFFERS = "reference-differs", "The bytes, the dtype or the shape of a tensor are not the reference's."
    REFERENCE_NAMES = "reference-names", "Only one of checkpoint and reference has a tensor or a file."
    SIDE_FILE_DIFFERS = "side-file-differs", "A file beside the shards says something else than the reference's."

    # Why was nothing written?
    FAULTY_SOURCE = "faulty-source", "The checkpoint has a fault: nothing of it was written or loaded."
    NOTHING_TO_EXPAND = "nothing-to-expand", "The checkpoint has no CSF planes."
    NOTHING_MATCHED = "nothing-matched", "No block scale is to be compressed."
    NO_ROOM = "no-room", "The file system has too little room."
    NOT_EMPTY = "not-empty", "The destination is not empty."
    WRONG_IN_DESTINATION = "wrong-in-destination", "A file in the destination is not what would be written there."
    OTHER_RUN = "other-run", "The destination holds an unfinished run of something else."
    JOURNAL_TAKEN = "journal-taken", "Something that is no journal has the name of csf-tool's journal there."
    LOST_OUTPUT = "lost-output", "What an earlier run wrote is not there any more."
    DAMAGED_JOURNAL = "damaged-journal", "The records of an unfinished run are damaged."
    NESTED_FOLDERS = "nested-folders", "Source and destination lie inside one another."
    SHARED_SOURCE = "shared-source", "A source's file may be needed by others: it is not removed."
    SOURCE_CHANGED = "source-changed", "The source is not what it was when the run began."
    WRITTEN_WRONGLY = "written-wrongly", "What was written does not give back the original."

    # Whatever else
    USAGE = "usage", "The request cannot be right; the message says what to give."
    ENVIRONMENT = (
        "environment",
        "It cannot be done here: disk, network, permission, or something that is not installed.",
    )


INCOMPLETE = {
    Code.WEIGHT_WITHOUT_SCALE,
    Code.SCALE_WITHOUT_WEIGHT,
    Code.SCALE_SHAPE,
    Code.SCALE_LABEL,
    Code.COMPANION_MISSING,
}
"""Kinds of faults that make a model useless, though all of its bytes here can be read and carried as they are."""


class Finding(NamedTuple):
    """A fault in words, with its kind."""

    problem: str
    code: Code


SUPERFLUOUS = frozenset(
    {
        Code.RUN_UNFINISHED,
        Code.MIXED_LAYOUTS,
        Code.INDEX_LACKS_SHARD,
        Code.SHARD_LEFT_ASIDE,
        Code.RANK_FILES,
        Code.TENSOR_IN_TWO_SHARDS,
        Code.PLANE_STORED_TWICE,
        Code.SHARD_NOT_IN_MANIFEST,
        Code.STRAY_RECEIPT,
    }
)
"""Problems of what is there and should not be, or not twice: fetching the files again does not change that."""
