"""Choice among several answers to a context (GPT-1, Radford et al. 2018, Improving Language Understanding by Generative
Pre-Training, section 3.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Range, Text
from t2x.data import Choice
from t2x.models.losses import classification_sums
from t2x.tasks.distillation import TeacherLoss
from t2x.tasks.labelled import LabelledTask

__all__ = ['MultipleChoice']


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoice(LabelledTask):
  """Predicts which of several texts, the `choices` of an example, fits its context; `answer` is the number
  of the right one.

  The model reads the context with each choice in a row of its own. The head has one class logit, and the logits of the
  choices are those of a softmax. Metrics: loss and accuracy.

  Attributes:
    context: names of the text fields of the context, which are joined by line breaks.
    num_choices: number of choices of an example.
    distillation: the teacher's term, `Distillation` or `HardDistillation`; None without a teacher.
  """

  context: Annotated[Sequence[Text], NonEmpty]
  num_choices: Annotated[int, Range('2 <= x')]
  distillation: TeacherLoss | None = None

  learns_from_teacher: ClassVar[bool] = True
  unit: ClassVar[str] = 'examples'
  outputs: ClassVar[str] = 'class logits'
  head: ClassVar[str] = 'SequenceClassifier'
  numbers: ClassVar[Mapping[str, Any]] = {'label': jnp.int32}
  best_metric: ClassVar[str] = 'accuracy'
  best_mode: ClassVar[Literal['min', 'max']] = 'max'
  example_metrics: ClassVar[frozenset[str]] = frozenset({'loss', 'accuracy'})

  @property
  def num_texts(self):
    return self.num_choices

  @property
  def plans(self):
    """One for each choice."""
    settings = {'length': self.length, 'num_choices': self.num_choices}
    return [
      Choice(context=tuple(self.context), number=number, **settings)
      for number in range(self.num_choices)
    ]

  def tokenizer_texts(self):
    for example in self.source.load(self.train_split):
      yield from (example[name] for name in self.context if name in example)
      yield from example.get('choices', ())

  def predictions(self, model, batch, key):
    """Returns the logits of the choices, float32 [batch, choices], and the output for the rows of `by_text`."""
    return self.text_logits(model, batch, key)

  def sums(self, model, batch, key, teacher=None):
    """Returns loss and accuracy over the examples with weight 1."""
    logits, out = self.predictions(model, batch, key)
    weights = self.weighted_targets(batch)
    sums = classification_sums(logits, batch['label'], weights)
    output = self.with_auxiliaries(sums, model, out, batch, key)
    return self.distilled(output, logits, out.x, teacher, batch)

  def check_prompt(self, prompt):
    """Raises UserError if the prompt is not a context and the choices, separated by tabs."""
    if prompt.count('\t') != self.num_choices:
      raise UserError(
        f'a prompt must be a context and {self.num_choices} choices, separated by tabs'
      )

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Returns the likeliest choices of each prompt, a context and the choices separated by tabs."""
    examples, (first, *others) = [], self.context
    for prompt in prompts:
      self.check_prompt(prompt)
      context, *choices = prompt.split('\t')
      example = {first: context, 'choices': choices, 'answer': 0}
      examples.append(example | dict.fromkeys(others, ''))
    _, logits = self.run_on_examples(
      lambda m, batch: self.predictions(m, batch, None)[0], model, examples
    )
    log_probs = np.asarray(jax.nn.log_softmax(logits))

    def answer(row, number):
      score = float(log_probs[row, number])
      text = examples[row]['choices'][number]
      return {'text': text, 'tokens': [int(number)], 'log_probs': [score], 'score': score}

    order = np.argsort(-log_probs, axis=1)[:, :num_return]
    return [[answer(row, number) for number in numbers] for row, numbers in enumerate(order)]
