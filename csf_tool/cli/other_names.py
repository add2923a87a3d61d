"""Names that other tools have for what csf-tool does: what to type instead, where the nearest spelling misleads."""

_COMMANDS = {
    "expand": "decompress decode unpack extract restore dequantize dequant",
    "compress": "encode pack quantize",
    "verify": "check validate test checksum fsck",
    "verify CHECKPOINT --against DENSE": "diff compare cmp",
    "stats": "info size sizes du summary",
    "ls": "list dump tensors keys",
    "inspect": "show view cat print",
    "identity": "hash sha256 sha256sum fingerprint id",
    "--version": "version",
    "--help": "usage man",
}

_OPTIONS = {
    "--against": "--reference --dense --original --compare --with",
    "--jobs": "--workers --threads --num-workers --parallel --processes -t -p -w",
    "--device": "--gpu --cuda --cpu",
    "--tp": "--gpus --tensor-parallel --tensor-parallel-size --tp-size",
    "--gpu-memory": "--vram --memory",
    "--to": "--layout --format --target",
    "--manifest": "--sha256 --sha256sums --checksums --hashes",
    "--consume-source": "--delete --delete-source --remove-source --move --in-place --inplace",
    "--cluster": "--dask --scheduler",
    "--only": "--shard --file",
    "--shards": "--part --parts --rank",
}

_SENTENCES = {
    "DEST": {
        "the destination is the second argument": "--output -o --out --dest --destination --output-dir --outdir",
        "nothing is ever overwritten: remove the destination, or give another": "--force -f --overwrite --clobber",
        "the same command goes on by itself": "--resume --continue -c",
    },
    "CHECKPOINT": {
        "a revision is a part of the name: org/name@REVISION": "--revision --branch --commit --tag",
        "log in with `hf auth login`, or set HF_TOKEN": "--token --hf-token --auth",
    },
}
"""Sentences about options that no command has, by the argument that a command with them would have."""


def command_for(typed: str) -> str | None:
    """The command here that does what a command of another tool is for; None where there is none."""
    return _key(_COMMANDS, typed.lower())


def option_for(typed: str, known: set[str], arguments: set[str]) -> str:
    """The end of a message about an option of another tool, for a command with these; empty where nothing is known."""
    option = _key(_OPTIONS, typed)
    if option in known:
        return f"; did you mean {option}?"
    said = (_key(sentences, typed) for argument, sentences in _SENTENCES.items() if argument in arguments)
    return next((f": {sentence}" for sentence in said if sentence), "")


def _key(names: dict[str, str], typed: str) -> str | None:
    return next((name for name, others in names.items() if typed in others.split()), None)
