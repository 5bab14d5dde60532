"""What a run evaluates besides the loss of its own task: other data, and what the model generates.

`Experiment.evaluations` holds evaluators by name; their metrics are NAME/METRIC.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from t2x.data.sources.subset import Spread, spread
from t2x.decode import Strategy
from t2x.errors import UserError
from t2x.ranges import Count, Natural, Size, Text
from t2x.tasks.base import Task
from t2x.tasks.causal_lm import CausalLM
from t2x.tasks.span_prediction import SpanPrediction
from t2x.tasks.squad import exact_match, word_f1
from t2x.tasks.translation import Translation

# Gives the items of an iterable, and watches how long each of them is worked on.
Watched = Callable[[Iterable], Iterable]
# Of what an evaluation generated, so many are kept.
_SAMPLES = 10


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The result of an evaluator.

  Attributes:
    metrics: numbers by name, and texts that say how they were computed.
    samples: some of what was generated.
  """

  metrics: Mapping[str, float | str]
  samples: Sequence[Mapping[str, str]] = ()


class Evaluated(Protocol):
  """The trained model that an evaluator is given.

  Attributes:
    task: the evaluator's, bound to the run's tokenizer.
    watched: what takes long is iterated through it, so that a device that hangs is noticed.
  """

  task: Task
  watched: Watched

  def model(self) -> Any:
    """The model with its parameters."""
    ...

  def rows(self, split: str) -> Any:
    """The model-ready rows of a split of the task."""
    ...

  def means(self, split: str, num_rows: int | None) -> dict[str, float]:
    """The task's metrics over rows that are spread evenly over a split (None: all rows)."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(abc.ABC):
  """Evaluates a model now and then.

  Attributes:
    task: what is evaluated; None: the experiment's own task.
    split: of the task's source; None: the task's `eval_split`.
    every: takes part in every so many evaluations of the run (1: in each) and in the last; 0: in the last only.
    num_examples: evaluates so many, spread evenly over the split; None: all.
  """

  task: Task | None = None
  split: Text | None = None
  every: Natural = 1
  num_examples: Count | None = None

  def replaced(self, **settings: Any) -> 'Evaluator':
    """The evaluator with other settings."""
    return dataclasses.replace(self, **settings)

  def check(self, task: Task, model: Any) -> None:  # noqa: B027
    """Raises UserError if the task cannot be evaluated so.

    Args:
      task: bound to the tokenizer.
      model: its shapes.
    """

  @abc.abstractmethod
  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """Evaluates."""

  def _split(self, task: Task) -> str:
    return self.split or task.eval_split

  def _examples(self, task: Task) -> Sequence[Mapping[str, Any]]:
    """Some examples of the source, spread evenly."""
    examples = task.source.load(self._split(task))
    if self.num_examples is None or self.num_examples >= len(examples):
      return examples
    return Spread(examples, self.num_examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses(Evaluator):
  """The metrics of a task without generation, over rows of other data or another length."""

  def __call__(self, evaluated: Evaluated) -> Evaluation:
    """As the task defines them."""
    return Evaluation(evaluated.means(self._split(evaluated.task), self.num_examples))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfTask(Evaluator):
  """An evaluator for one kind of task."""

  kind: ClassVar[type[Task]]

  def check(self, task: Task, model: Any) -> None:
    """The task is of that kind."""
    if not isinstance(task, self.kind):
      raise UserError(
        f'{type(self).__name__} evaluates @{self.kind.__name__}, not @{type(task).__name__}'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples(_OfTask):
  """Texts that the model continues, to be read by people. No metrics.

  Attributes:
    prompts: the beginnings.
    num_tokens: length of the continuations.
    strategy: how their tokens are chosen; None: the task's.
  """

  prompts: Sequence[Text]
  num_tokens: Size = 64
  strategy: Strategy | None = None

  kind: ClassVar[type[Task]] = CausalLM

  def __post_init__(self):
    if self.split is not None or self.num_examples is not None:
      raise UserError('Samples.prompts are all it reads: leave out Samples.split and num_examples')

  def replaced(self, **settings):
    """The prompts are always the same."""
    known = {
      name: value for name, value in settings.items() if name not in ('split', 'num_examples')
    }
    return super().replaced(**known)

  def check(self, task, model):
    """Shapes the continuations."""
    super().check(task, model)
    assert isinstance(task, CausalLM)
    task.check_generate(model, self.prompts, self.strategy or task.strategy, self.num_tokens)

  def __call__(self, evaluated):
    """The same at every evaluation but for the parameters."""
    task, samples = evaluated.task, []
    assert isinstance(task, CausalLM)
    strategy = self.strategy or task.strategy
    for prompts in evaluated.watched([self.prompts]):
      answers = task.generate(
        evaluated.model(), prompts, strategy=strategy, max_new_tokens=self.num_tokens
      )
      samples += [
        {'prompt': prompt, 'output': answer[0]['text']}
        for prompt, answer in zip(prompts, answers, strict=True)
      ]
    return Evaluation({}, samples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translations(_OfTask):
  """BLEU and chrF of translations, by sacrebleu, and the fraction that equals the reference.

  Attributes:
    language: code of the target language, which decides how sacrebleu splits text into words (`zh`,
      `ja` and `ko` have tokenizers of their own); '' is its default, 13a.
    strategy: how tokens are chosen; None: the task's.
    batch_size: sentences translated at once.
  """

  language: str = ''
  strategy: Strategy | None = None
  batch_size: Size = 64

  kind: ClassVar[type[Task]] = Translation

  def check(self, task, model):
    """Shapes the translation of the longest sources; asks sacrebleu for the tokenizer."""
    super().check(task, model)
    assert isinstance(task, Translation)
    self._bleu()
    task.check_generate(model, self.strategy or task.strategy, self.batch_size)

  def _bleu(self) -> Any:
    import sacrebleu

    try:
      return sacrebleu.BLEU(trg_lang=self.language)
    except (ImportError, RuntimeError, ValueError) as error:
      raise UserError(f"Translations.language = '{self.language}': {error}") from error

  def __call__(self, evaluated):
    """Neighbours in length share a batch, so that little padding is translated."""
    task = evaluated.task
    assert isinstance(task, Translation)
    examples = self._examples(task)
    pairs = [examples[i] for i in range(len(examples))]
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i]['source']))
    model, outputs = evaluated.model(), [''] * len(pairs)
    for start in evaluated.watched(range(0, len(pairs), self.batch_size)):
      chosen = order[start : start + self.batch_size]
      # The last batch is filled up, so that it needs no compilation of its own.
      prompts = [pairs[i]['source'] for i in chosen]
      prompts += [prompts[-1]] * (self.batch_size - len(prompts))
      answers = task.generate(
        model,
        prompts,
        strategy=self.strategy or task.strategy,
        max_new_tokens=task.target_length,
      )
      for i, answer in zip(chosen, answers, strict=False):
        outputs[i] = answer[0]['text']
    return self._scored(pairs, outputs)

  def _scored(self, pairs: Sequence[Mapping[str, str]], outputs: Sequence[str]) -> Evaluation:
    import sacrebleu

    bleu, chrf = self._bleu(), sacrebleu.CHRF()
    references = [pair['target'] for pair in pairs]
    metrics: dict[str, float | str] = {
      'examples': float(len(pairs)),
      'bleu': bleu.corpus_score(outputs, [references]).score,
      'bleu_signature': str(bleu.get_signature()),
      'chrf': chrf.corpus_score(outputs, [references]).score,
      'chrf_signature': str(chrf.get_signature()),
      'exact_match': float(np.mean([o == r for o, r in zip(outputs, references, strict=True)])),
    }
    samples = [
      {'source': pair['source'], 'target': pair['target'], 'output': output}
      for pair, output in list(zip(pairs, outputs, strict=True))[:_SAMPLES]
    ]
    return Evaluation(metrics, samples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers(_OfTask):
  """Exact match and F1 of answers to questions as SQuAD's script computes them, as fractions."""

  kind: ClassVar[type[Task]] = SpanPrediction

  def __call__(self, evaluated):
    """The model's answers."""
    task = evaluated.task
    assert isinstance(task, SpanPrediction)
    split = self._split(task)
    examples = task.source.load(split)
    count = min(len(examples), self.num_examples or len(examples))
    wanted = spread(count, len(examples))
    answers = task.answers(
      evaluated.model(), evaluated.rows(split), examples, wanted, evaluated.watched
    )
    pairs = [(answers[i], list(examples[i]['answers'])) for i in wanted]
    metrics = {
      'examples': float(len(pairs)),
      'exact_match': float(np.mean([exact_match(answer, gold) for answer, gold in pairs])),
      'f1': float(np.mean([word_f1(answer, gold) for answer, gold in pairs])),
    }
    samples = [
      {'question': examples[i]['question'], 'answers': ' | '.join(gold), 'output': answer}
      for i, (answer, gold) in zip(wanted[:_SAMPLES], pairs, strict=False)
    ]
    return Evaluation(metrics, samples)
