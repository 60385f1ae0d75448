"""The Trainer of transformers: a tiny ViT on pictures; a large batch takes more memory than its share."""

import tempfile

from common import images, options
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import tuner
from tuner.transformers import ReportCallback


def pictures():
    return [[{"pixel_values": x, "labels": y} for x, y in zip(*part, strict=True)] for part in images()]


def accuracy(said):
    return {"accuracy": (said.predictions.argmax(1) == said.label_ids).mean()}


def train(config):
    sizes = {"hidden_size": config["hidden"], "intermediate_size": 2 * config["hidden"]}
    shape = {"image_size": 28, "patch_size": 7, "num_channels": 1, "num_labels": 10}
    model = ViTForImageClassification(ViTConfig(num_hidden_layers=2, num_attention_heads=2, **shape, **sizes))
    report, (training, unseen) = ReportCallback(), pictures()
    with tempfile.TemporaryDirectory() as folder:
        each_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch", "save_total_limit": 1}
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            learning_rate=config["lr"],
            per_device_train_batch_size=config["batch_size"],
            per_device_eval_batch_size=256,
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
            **each_epoch,
        )
        data = {"train_dataset": training, "eval_dataset": unseen}
        trainer = Trainer(model, arguments, callbacks=[report], compute_metrics=accuracy, **data)
        trainer.train(resume_from_checkpoint=report.resume_from_checkpoint)


if __name__ == "__main__":
    tuner.run(
        train,
        space={
            "hidden": {"choice": [8, 16, 32, 128]},
            "batch_size": {"logint": [32, 2048]},
            "lr": {"loguniform": [1e-3, 1e-2]},
        },
        points=[{"hidden": 128, "batch_size": 2048, "lr": 0.005}],
        metric="eval_accuracy",
        direction="maximize",
        num_samples=10,
        **options(device_memory_gb=1.7),
    )
