"""Classification of the words of sentences, e.g. part-of-speech tagging and named entity recognition (BERT,
https://arxiv.org/abs/1810.04805, section 5.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty
from t2x.data import LabelledWords
from t2x.models import Output, TextModel
from t2x.models.language_model import select
from t2x.models.losses import classification_sums
from t2x.models.ranks import choice
from t2x.tasks.entities import Tags, entities, num_equal
from t2x.tasks.labelled import LabelledTask
from t2x.tasks.text import encoded_spec, hidden_of

__all__ = ['WordClassification']


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordClassification(LabelledTask):
  """Predicts the class of each word from its first token. Examples have lists `words` and `labels`.

  Metrics: accuracy over words; if the labels are BIO tags also entity_precision, entity_recall and entity_f1
  over complete entities, as in seqeval and conlleval. Sentences longer than a row are split between words;
  each word counts once, and an entity across a split counts as two.

  Attributes:
    labels: names of the classes, BIO tags or others.
  """

  # A field without a default; LabelledTask has the value of tasks without classes.
  labels: Annotated[Sequence[str], NonEmpty] = dataclasses.field()

  outputs: ClassVar[str] = 'classes per token'
  head: ClassVar[str] = 'TokenClassifier'
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'

  def texts_of(self, example):
    """Returns the sentence, with spaces between the words."""
    return {'words': ' '.join(map(str, example['words']))} if 'words' in example else {}

  @property
  def plan(self):
    """One sentence per row."""
    return LabelledWords(length=self.length, labels=tuple(self.labels))

  def spec(self, batch_size):
    """Returns tokens, types, segments, word_positions, word_labels, word_weights: int32 [batch, length]."""
    words = ('word_positions', 'word_labels', 'word_weights')
    return encoded_spec(batch_size, self.length, *words)

  def check_model(self, model):
    """Also raises UserError if only some of the labels are BIO tags."""
    super().check_model(model)
    Tags.from_labels(self.labels)

  def target_weights(self, batch):
    return (batch['word_weights'] != 0).astype(jnp.float32)

  def predictions(
    self, model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> tuple[Float[Array, 'batch words classes'], Output]:
    """Returns the class logits of each word in float32, and the model's output with the hidden vectors."""
    out = hidden_of(model, batch, key, self.token_marks)
    return model.logits(select(out.x, batch['word_positions'])).astype(jnp.float32), out

  def sums(self, model, batch, key):
    """Returns loss and accuracy over words, and precision, recall and F1 of entities as pairs of counts."""
    logits, out = self.predictions(model, batch, key)
    labels, present = batch['word_labels'], batch['word_weights'] != 0
    sums = classification_sums(logits, labels, self.weighted_targets(batch))
    tags = Tags.from_labels(self.labels)
    if tags is None:
      return self.with_auxiliaries(sums, model, out, batch, key)
    best = choice(logits)
    predicted = entities(tags, best, present & (best >= 0))
    true = entities(tags, labels, present)
    num_correct, num_predicted, num_true = (
      n.astype(jnp.float32)
      for n in (num_equal(predicted, true), predicted.begins.sum(), true.begins.sum())
    )
    sums |= {
      'entity_precision': (num_correct, num_predicted),
      'entity_recall': (num_correct, num_true),
      'entity_f1': (2 * num_correct, num_predicted + num_true),
    }
    return self.with_auxiliaries(sums, model, out, batch, key)

  def check_prompt(self, prompt):
    """Raises UserError if the prompt has no words."""
    if not prompt.split():
      raise UserError('the prompt has no words to classify')

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Labels the words of each prompt, which are split at white space; returns `word/label word/label`."""
    for prompt in prompts:
      self.check_prompt(prompt)
    sentences = [prompt.split() for prompt in prompts]
    examples = [{'words': words, 'labels': [self.labels[0]] * len(words)} for words in sentences]
    rows, logits = self.run_on_examples(
      lambda m, batch: self.predictions(m, batch, None)[0], model, examples
    )
    # Every word is in exactly one row, in the order of the prompts.
    by_word = np.asarray(jax.nn.log_softmax(logits))[
      np.stack([r['word_weights'] for r in rows]) != 0
    ]
    answers = []
    for words in sentences:
      scores, by_word = by_word[: len(words)], by_word[len(words) :]
      tokens, log_probs = scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist()
      text = ' '.join(f'{w}/{self.labels[i]}' for w, i in zip(words, tokens, strict=True))
      fields = {'text': text, 'tokens': tokens, 'log_probs': log_probs}
      answers.append([fields | {'score': sum(log_probs)}])
    return answers
