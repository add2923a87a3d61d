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
    NO_SHARD_HERE = "no-shard-here", "An index or manifest is here, but all the shards that it lists are missing."
    NO_SHARD_READABLE = "no-shard-readable", "There are shards, but none of them can be read."
    DOWNLOAD_BEGUN = "download-begun", "There are only unfinished files of a download."
    DOWNLOAD_UNFINISHED = "download-unfinished", "There are shards, and also unfinished files of a download."
    RUN_UNFINISHED = "run-unfinished", "A csf-tool run into this folder is not finished."
    GIT_POINTER = "git-pointer", "The file is a git-LFS or git-Xet pointer, not the file itself."
    WEB_PAGE = "web-page", "The file is a web page, not the file itself."
    SAVED_MESSAGE = "saved-message", "The file is a text, for example a saved error message of a server."
    NEVER_FILLED = (
        "never-filled",
        "The file begins with zeros: a download reserved its space and never wrote its content.",
    )
    OTHER_FORMAT = "other-format", "The format of the file is not the one in its name."
    UNKNOWN_SCHEMA = "unknown-schema", "The manifest has a schema that this version of csf-tool does not know."
    MIXED_LAYOUTS = "mixed-layouts", "A container and a Hugging Face checkpoint are in one folder."
    SERVING_DIRECTORY = "serving-directory", "The folder is a serving directory whose weights are not here."
    NO_INDEX = "no-index", "There are shards, but no index that lists them."
    CONFIG_FORMAT = "config-format", "A config names other formats than the tensors or another config have."
    CONFIG_CONTRADICTS_ITSELF = "config-contradicts-itself", "A config states its quantisation twice, and differently."
    CONFIG_PRECISION = "config-precision", "A config says that modules are FP4, but they are not, or the reverse."
    SCALE_LAYOUT = "scale-layout", "Block scales may be padded or in tile order; their shape does not tell."
    STACKED_SCALES = "stacked-scales", "The block scales of all experts are one tensor, which CSF cannot store."

    # Files and documents
    MISSING_FILE = "missing-file", "A file that the checkpoint needs is not here."
    HUB_LACKS_FILE = "hub-lacks-file", "The Hub lists a file, but answers that it does not exist."
    NOT_A_FILE = "not-a-file", "A folder, a pipe or a device has the name of a file."
    UNUSABLE_NAME = "unusable-name", "A file has a name that cannot be used."
    UNSAFE_NAME = "unsafe-name", "The name of a file leaves the checkpoint's folder or is not a plain path."
    TOO_LARGE = "too-large", "A text file is larger than csf-tool reads."
    INVALID_JSON = "invalid-json", "A file or a header is not valid JSON, or not the kind of JSON that is needed."
    ODD_JSON = "odd-json", "A JSON file has something that some readers refuse or read differently."
    INVALID_FIELD = "invalid-field", "A field of a document has a wrong value."
    DAMAGED_FIELD = "damaged-field", "A word that every such document has is misspelt: the file is damaged."
    INDEX_LACKS_SHARD = "index-lacks-shard", "The index does not list a shard that is here."
    INDEX_LACKS_TENSOR = "index-lacks-tensor", "The index does not list a tensor that a shard holds."
    INDEX_NAMES_MISSING_TENSOR = "index-names-missing-tensor", "The index lists a tensor that no shard holds."
    INDEX_NAMES_OTHER_SHARD = "index-names-other-shard", "The index places a tensor in another shard than holds it."
    SHARD_LEFT_ASIDE = "shard-left-aside", "A shard is not in the index, and what it holds is also in shards that are."
    RANK_FILES = "rank-files", "There is one file per rank of a tensor-parallel engine, and no whole tensors."
    TENSOR_IN_TWO_SHARDS = "tensor-in-two-shards", "Two shards hold a tensor with the same name."

    # Headers and data of shards
    NOT_SAFETENSORS = "not-safetensors", "The file is not a safetensors file, or is cut short inside its header."
    INVALID_HEADER = "invalid-header", "The entry of a tensor in a header is not possible."
    UNKNOWN_DTYPE = "unknown-dtype", "A tensor has a dtype that csf-tool does not know."
    TRUNCATED = "truncated", "The shard is shorter than its header says."
    TRAILING_BYTES = "trailing-bytes", "The shard is longer than its header says."
    DATA_OVERLAP = "data-overlap", "Two tensors share bytes."
    DATA_HOLE = "data-hole", "There are bytes between the tensors that belong to no tensor."
    ZERO_WEIGHT = "zero-weight", "A weight or a plane is entirely zero, which failed downloads cause."
    ZERO_STREAM = "zero-stream", "A fixed stream is entirely zero, but its exceptions are not."
    FILE_SHRANK = "file-shrank", "The file became shorter while it was read."

    # Hashes
    HASH_DIFFERS = "hash-differs", "The file is not the one whose hash was published."
    HASH_DAMAGED = "hash-damaged", "A line of a hash list or a note is damaged, contradicts another, or has no hash."
    NO_RECORDED_HASH = (
        "no-recorded-hash",
        "The SHA-256 of a shard is not recorded, but an identity by digests needs it.",
    )
    MIXED_REVISIONS = "mixed-revisions", "The files were downloaded from different revisions."
    SIZE_DIFFERS = "size-differs", "The file is not as long as a manifest or a list says."
    SOURCE_DIFFERS = "source-differs", "The streams decode to other bytes than the original has."
    CANNOT_BE_REBUILT = (
        "cannot-be-rebuilt",
        "The original shard cannot be rebuilt, because some of its bytes are not available.",
    )
    OTHER_LIST = "other-list", "The list of hashes belongs to another repository, revision or folder."

    # Streams and planes
    BASE_TOO_HIGH = "base-too-high", "A row's base is above the highest of the format."
    PADDING_BITS = "padding-bits", "Bits past the last column of a row are not zero."
    POSITION_OUTSIDE = "position-outside", "An exception's position is outside its plane."
    POSITION_ORDER = "position-order", "The positions of exceptions do not strictly increase."
    NEEDLESS_EXCEPTION = "needless-exception", "An exception is inside its row's window, so it is not needed."
    STREAM_SIZE = "stream-size", "A stream has another dtype, shape or size than its plane needs."
    UNREADABLE_STREAMS = (
        "unreadable-streams",
        "The streams cannot be read or decoded, because of an earlier problem.",
    )
    HALF_A_PAIR = "half-a-pair", "A fixed stream or an exception list has no partner."
    GEOMETRY_UNKNOWN = "geometry-unknown", "The numbers of rows and columns of a plane are unknown."
    GEOMETRY_CONTRADICTS = "geometry-contradicts", "Receipt, stream and weight give a plane different rows and columns."
    GEOMETRY_IMPOSSIBLE = "geometry-impossible", "The format has no planes of these rows and columns."
    NOT_FP4_WEIGHT = "not-fp4-weight", "The weight beside a plane does not hold FP4 codes of the plane's groups."
    PLANE_STORED_TWICE = "plane-stored-twice", "A plane is stored both dense and in CSF streams, or in two formats."
    WEIGHT_WITHOUT_SCALE = "weight-without-scale", "An FP4 weight has no block scale: its values are lost."
    SCALE_WITHOUT_WEIGHT = "scale-without-weight", "A block scale or a global scale has no FP4 weight beside it."
    SCALE_SHAPE = "scale-shape", "A block scale does not have the shape that its FP4 weight needs."
    SCALE_LABEL = "scale-label", "Block scales have a dtype or a group size that no FP4 format has."
    GLOBAL_SCALE = "global-scale", "A global scale or an input scale is not one number that readers can use."
    COMPANION_MISSING = "companion-missing", "A weight lacks a scale, or an expert a weight, that its siblings have."
    EXPERT_MISSING = "expert-missing", "A layer has not as many experts as the config states."
    UNKNOWN_CODEC = "unknown-codec", "A stream is of a codec that this version of csf-tool does not know."
    NO_STACK = (
        "no-stack",
        "The planes of a layer's experts cannot be stacked: some are missing, or they differ in format or shape.",
    )

    # A container's documents, and recipes
    NO_RECEIPTS = "no-receipts", "A container has no receipts or no contract."
    DOCUMENTS_CONTRADICT = "documents-contradict", "A container's documents contradict each other or the shards."
    SHARD_NOT_IN_MANIFEST = "shard-not-in-manifest", "There is a shard that the manifest does not list."
    STRAY_RECEIPT = "stray-receipt", "There is a receipt of a shard that the manifest does not list."
    CONTRACT_DIFFERS = "contract-differs", "The contract and the shards do not have the same tensors."
    RECEIPT_DIFFERS = "receipt-differs", "The receipts and the shards do not have the same tensors or sizes."
    RECIPE_NOT_MARKED = "recipe-not-marked", "A module has CSF streams, but no recipe that is marked as CSF."
    RECIPE_WITHOUT_STREAMS = "recipe-without-streams", "A recipe is marked as CSF, but there are no streams of it."

    # Against a reference
    REFERENCE_DIFFERS = "reference-differs", "The bytes, the dtype or the shape of a tensor differ from the reference."
    REFERENCE_NAMES = "reference-names", "Only the checkpoint or only the reference has a tensor or a file."
    SIDE_FILE_DIFFERS = "side-file-differs", "A file beside the shards differs from the one in the reference."

    # Why was nothing written?
    FAULTY_SOURCE = "faulty-source", "The checkpoint has a fault: nothing of it was written or loaded."
    NOTHING_TO_EXPAND = "nothing-to-expand", "The checkpoint has no CSF planes."
    NOTHING_MATCHED = "nothing-matched", "There is no block scale to compress."
    NO_ROOM = "no-room", "There is not enough disk space."
    NOT_EMPTY = "not-empty", "The destination is not empty."
    WRONG_IN_DESTINATION = (
        "wrong-in-destination",
        "A file in the destination is not the one that would be written there.",
    )
    OTHER_RUN = "other-run", "The destination holds an unfinished run with another source or other options."
    JOURNAL_TAKEN = "journal-taken", "Something in the destination has the name of csf-tool's journal, but is not one."
    LOST_OUTPUT = "lost-output", "A file that an earlier run wrote is missing."
    DAMAGED_JOURNAL = "damaged-journal", "The records of an unfinished run are damaged."
    NESTED_FOLDERS = "nested-folders", "The source and the destination are inside one another."
    SHARED_SOURCE = "shared-source", "Others may need a file of the source, so csf-tool does not remove it."
    SOURCE_CHANGED = "source-changed", "The source has changed since the run began."
    WRITTEN_WRONGLY = "written-wrongly", "The written file does not decode to the original."

    # Whatever else
    USAGE = "usage", "The request is wrong; the message says what to give."
    ENVIRONMENT = (
        "environment",
        "It is not possible on this machine: disk, network, permission, or a missing package.",
    )


INCOMPLETE = {
    Code.WEIGHT_WITHOUT_SCALE,
    Code.SCALE_WITHOUT_WEIGHT,
    Code.SCALE_SHAPE,
    Code.SCALE_LABEL,
    Code.GLOBAL_SCALE,
    Code.COMPANION_MISSING,
    Code.EXPERT_MISSING,
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
