"""Data for public scripts: sentences, a tokenizer, a small BERT and digits, all made here."""

from __future__ import annotations

import csv
import random
import struct
from pathlib import Path

WORDS = 500
LINES = 40_000


def everything(folder: Path) -> Path:
    """All of it, once; the folder."""
    if not (folder / "made").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _text(folder)
        _tokenizer(folder / "tokenizer")
        _bert(folder / "bert")
        _digits(folder / "digits")
        (folder / "made").touch()
    return folder


def _text(folder: Path) -> None:
    """Sentences of 4 to 24 words, no two alike; and labelled ones."""
    draw = random.Random(0)
    lines = [
        " ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(4, 24)))
        for _ in range(LINES)
    ]
    (folder / "text.txt").write_text("\n".join(lines))
    with (folder / "labelled.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "label"])
        rows.writerows([line, i % 2] for i, line in enumerate(lines))


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(WORDS))]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", eos_token="[SEP]", bos_token="[CLS]",
    ).save_pretrained(folder)  # fmt: skip


def _bert(folder: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS + 5, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=128, max_position_embeddings=64,
        )
    ).save_pretrained(folder)  # fmt: skip
    _tokenizer(folder)


def _digits(folder: Path) -> None:
    """28 x 28 images in the files that torchvision looks for."""
    draw = random.Random(1)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, many in (("train", 60_000), ("t10k", 10_000)):
        head = struct.pack(">IIII", 2051, many, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + draw.randbytes(many * 784))
        labels = bytes(draw.randrange(10) for _ in range(many))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, many) + labels)
