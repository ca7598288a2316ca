"""Hugging Face's Trainer with its defaults, on a tiny BERT."""

import numpy as np
import pytest
import torch

import deconfound as dc
from tests.attach.cohort import make_cohort

transformers = pytest.importorskip("transformers")


def make_bert():
    """Return a small BERT with random weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        num_labels=2,
    )
    return transformers.BertForSequenceClassification(config)


def make_rows(cohort):
    """Return a dataset: one dict per person, in which words show inputs and positions do not."""
    words = (cohort.inputs * 3 + 9).round().clamp(0, 19).long()
    return [
        {"input_ids": word, "attention_mask": torch.ones(6), "labels": int(label), "metadata": row}
        for word, label, row in zip(words, cohort.target, cohort.metadata, strict=True)
    ]


def make_model(cohort):
    """Return a BERT with a layer after its pooler, and one after its tokens."""
    batch = transformers.default_data_collator(make_rows(cohort)[:2])
    del batch["labels"], batch["metadata"]
    return dc.normalize(make_bert(), cohort.design, ["bert.encoder", "bert.pooler"], batch)


def make_trainer(cohort, model, folder, **options):
    """Return a Trainer whose defaults stand, but for the length of the training."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, report_to=[], disable_tqdm=True, **options
    )
    rows = make_rows(cohort)
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=rows[:80], eval_dataset=rows[80:]
    )


# Trainer asks for pinned memory although there may be no accelerator.
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")


def test_train_evaluate_and_predict(cohort, tmp_path):
    """Fault 8: the columns `metadata` and `labels` arrive, and evaluation has a loss.

    Kills a forward without named columns, which Trainer drops, and labels that it cannot find.
    """
    model = make_model(cohort)
    trainer = make_trainer(cohort, model, tmp_path)
    before = trainer.evaluate()["eval_loss"]
    result = trainer.train()
    assert np.isfinite(result.training_loss)
    after = trainer.evaluate()["eval_loss"]
    assert after != before
    assert all(layer.beta.abs().max() > 1e-3 for layer in model.layers.values())

    prediction = trainer.predict(make_rows(cohort))
    batch = transformers.default_data_collator(make_rows(cohort))
    with torch.no_grad():
        expected = model.eval()(**batch)
    np.testing.assert_allclose(prediction.predictions, expected.logits.numpy(), atol=1e-5)
    assert prediction.metrics["test_loss"] == pytest.approx(expected.loss.item(), abs=1e-4)
    assert (prediction.label_ids == cohort.target.numpy()).all()


def test_evaluation_needs_no_labels_in_the_metadata(cohort, tmp_path):
    """New people have no label. Kills a prediction that reads the keep columns."""
    model = make_model(cohort)
    trainer = make_trainer(cohort, model, tmp_path)
    labelled = trainer.predict(make_rows(cohort)).predictions
    rows = make_rows(cohort)
    unlabelled = cohort.design.encode(cohort.table[["age", "sex"]])
    for row, metadata in zip(rows, torch.from_numpy(unlabelled), strict=True):
        row["metadata"] = metadata
        del row["labels"]
    np.testing.assert_array_equal(trainer.predict(rows).predictions, labelled)


def test_a_training_resumes_from_its_checkpoint(cohort, tmp_path):
    """A stopped and resumed training ends as an undisturbed one, with its coefficients.

    Kills a checkpoint without β or design, and one whose names do not fit.
    """
    whole = make_model(cohort)
    make_trainer(cohort, whole, tmp_path / "whole", save_strategy="epoch").train()
    resumed = make_model(make_cohort())
    trainer = make_trainer(cohort, resumed, tmp_path / "resumed", save_strategy="epoch")
    trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-10"))
    assert trainer.state.global_step == 20
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value)


def test_a_saved_model_loads_into_a_new_one(cohort, tmp_path):
    """`trainer.save_model` writes what `load_state_dict` reads strictly."""
    model = make_model(cohort)
    trainer = make_trainer(cohort, model, tmp_path)
    trainer.train()
    trainer.save_model()
    safetensors = pytest.importorskip("safetensors.torch")
    fresh = make_model(cohort)
    fresh.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(fresh.state_dict(), model.state_dict())


def test_the_network_keeps_its_own_output_class(cohort):
    """Kills an output that loses its attributes, or the network's own copy changed in place."""
    model = make_model(cohort)
    batch = transformers.default_data_collator(make_rows(cohort))
    output = model(**batch)
    assert isinstance(output, transformers.modeling_outputs.SequenceClassifierOutput)
    output.loss.backward()
    assert output.logits.shape == (120, 2)
