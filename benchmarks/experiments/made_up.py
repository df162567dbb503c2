"""Generated data for public scripts: sentences, a small BERT and GPT, digits, images with boxes."""

from __future__ import annotations

import csv
import json
import pickle
import random
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

WORDS = 500
LINES = 40_000
CHARACTERS = 65
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "steps_per_print": 1,
}
#: Code of a metric that scripts load together with the sentences. No script calls it within a
#: window.
METRIC = """
import datasets
import evaluate

class Glue(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features(
            {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        )
        return evaluate.MetricInfo(description="", citation="", features=kinds)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""


#: Photographs are in a separate folder, because a launch copies the files that its script finds,
#: and these are many.
PHOTOGRAPHS = "photographs"


def everything(folder: Path) -> Path:
    """Write all data once, and return their folder. Files have the names that scripts request from
    a hub.
    """
    photographs = folder.with_name(PHOTOGRAPHS)
    if not (photographs / "coco").is_dir():
        shutil.rmtree(photographs, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _sentences(folder)
        _models(folder)
        _digits(folder)
        _characters(folder)
        for name in ("Datasets", "data"):
            (folder / name).symlink_to(".")
        for stage in (2, 3):
            text = json.dumps(DEEPSPEED | {"zero_optimization": {"stage": stage}})
            (folder / f"zero{stage}.json").write_text(text)
        _boxes(photographs)
    return folder


def _sentences(folder: Path) -> None:
    """Write sentences of 4 to 24 words, all different: single ones, and labelled pairs."""
    draw = random.Random(0)
    lines = [
        " ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(4, 24)))
        for _ in range(LINES)
    ]
    _table(folder / "sentences" / "train.csv", ["text"], [[line] for line in lines])
    head = ["sentence1", "sentence2", "label", "idx"]
    rows = [[lines[i], lines[-1 - i], i % 2, i] for i in range(LINES // 2)]
    for name in ("train", "validation", "test"):
        part = rows if name == "train" else rows[:64]
        _table(folder / "glue" / f"{name}.csv", head, part)
    files = "".join(
        f"  - split: {name}\n    path: {name}.csv\n" for name in ("train", "validation", "test")
    )
    (folder / "glue" / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    )
    (folder / "glue" / "glue.py").write_text(METRIC)
    hub = folder / "nyu-mll" / "glue"
    hub.mkdir(parents=True)
    for name in ("train.csv", "validation.csv", "test.csv", "README.md"):
        (hub / name).symlink_to(Path("../../glue") / name)


def _table(path: Path, head: list[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)


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


def _models(folder: Path) -> None:
    """Write a BERT and a GPT, each with two small layers."""
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

    bert = BertConfig(
        vocab_size=WORDS + 5, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    gpt = GPT2Config(vocab_size=WORDS + 5, n_embd=64, n_layer=2, n_head=2, n_positions=64)
    BertForSequenceClassification(bert).save_pretrained(folder / "bert-base-cased")
    GPT2LMHeadModel(gpt).save_pretrained(folder / "gpt")
    for name in ("bert-base-cased", "gpt"):
        _tokenizer(folder / name)


def _characters(folder: Path) -> None:
    """Write numbers of 65 characters to the files that nanoGPT reads."""
    draw = random.Random(2)
    text = folder / "shakespeare_char"
    text.mkdir()
    for part, many in (("train", 400_000), ("val", 20_000)):
        numbers = [draw.randrange(CHARACTERS) for _ in range(many)]
        (text / f"{part}.bin").write_bytes(struct.pack(f"<{many}H", *numbers))
    (text / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": CHARACTERS}))


def _digits(folder: Path) -> None:
    """Write images of 28 x 28 pixels to the files that torchvision reads."""
    draw = random.Random(1)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, many in (("train", 60_000), ("t10k", 10_000)):
        head = struct.pack(">IIII", 2051, many, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + draw.randbytes(many * 784))
        labels = bytes(draw.randrange(10) for _ in range(many))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, many) + labels)


def _boxes(folder: Path) -> None:
    """Write noise images in COCO's format with one to three boxes: 960 for training and 8 for
    evaluation.
    """
    from PIL import Image

    draw = random.Random(3)
    coco = folder / "coco"
    (coco / "annotations").mkdir(parents=True)
    for part, many in (("train2017", 960), ("val2017", 8)):
        (coco / part).mkdir()
        images = list[dict[str, object]]()
        annotations = list[dict[str, object]]()
        for number in range(1, many + 1):
            width, height = draw.choice([(128, 96), (96, 128)])
            name = f"{number:06}.png"
            noise = draw.randbytes(3 * width * height)
            Image.frombytes("RGB", (width, height), noise).save(coco / part / name)
            images.append(dict(id=number, file_name=name, width=width, height=height))
            for _ in range(draw.randint(1, 3)):
                x, y, w, h = (draw.randrange(8, 40) for _ in range(4))
                corners = [x, y, x + w, y, x + w, y + h, x, y + h]
                annotations.append(
                    dict(
                        id=len(annotations) + 1, image_id=number, category_id=draw.randrange(1, 91),
                        bbox=[x, y, w, h], area=w * h, iscrowd=0, segmentation=[corners],
                    )
                )  # fmt: skip
        kinds = [dict(id=i, name=f"kind {i}") for i in range(1, 91)]
        document = dict(images=images, annotations=annotations, categories=kinds)
        (coco / "annotations" / f"instances_{part}.json").write_text(json.dumps(document))
